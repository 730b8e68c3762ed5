"""The pictures of the dashboard are those that `make screenshots` takes, which is two minutes of work."""

import importlib.util
import re
from pathlib import Path

from click.testing import CliRunner

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCRIPT = IMAGES / "screenshots.py"
PNG = b"\x89PNG"


def test_the_pictures_are_there_and_the_command_that_takes_them_too():
    named = set(re.findall(r'to / "(\w+\.png)"', SCRIPT.read_text("utf-8")))
    assert named == {"dashboard.png", "dashboard_query.png", "dashboard_reason.png"}
    assert all((IMAGES / name).read_bytes().startswith(PNG) for name in named)
    spec = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert "Take the pictures" in CliRunner().invoke(script.main, ["--help"]).output


def test_the_notebook_that_is_pictured_uses_what_there_is():
    text = SCRIPT.read_text("utf-8").partition('NOTEBOOK = f"""')[2].partition('"""')[0]
    import topiclake as tl

    assert [name for name in re.findall(r"\btl\.(\w+)", text) if not hasattr(tl, name)] == []
