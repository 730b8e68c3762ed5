"""The pictures of pages are those that `make screenshots` takes."""

import importlib.util
import re
from pathlib import Path

from click.testing import CliRunner
from markdown.extensions.toc import slugify

from workbench.notebook.files import read_notebook

PROJECT = Path(__file__).parents[2]
IMAGES = PROJECT / "docs" / "images"
SCRIPT = IMAGES / "screenshots.py"
PNG = b"\x89PNG"


def test_the_pictures_are_there_and_the_command_that_takes_them_too():
    named = set(re.findall(r'to / "(\w+\.png)"', SCRIPT.read_text("utf-8")))
    assert named == {"dashboard.png", "dashboard_query.png", "dashboard_reason.png"}
    assert all((IMAGES / name).read_bytes().startswith(PNG) for name in named)
    assert "Take the pictures" in CliRunner().invoke(module(SCRIPT).main, ["--help"]).output


def module(script):
    spec = importlib.util.spec_from_file_location(script.stem, script)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_each_tutorial_has_the_pictures_of_its_charts():
    charts = module(IMAGES / "tutorials.py").CHARTS
    notebooks = {file.stem: file for file in (PROJECT / "notebooks" / "tutorials").glob("*.py")}
    assert set(charts) == set(notebooks)
    for tutorial, titles in charts.items():
        assert set(titles) <= {cell.title for cell in read_notebook(notebooks[tutorial]).cells}
        pictures = list((IMAGES / "tutorials" / tutorial).iterdir())
        assert {file.name for file in pictures} == {f"{slugify(title, '-')}.png" for title in titles}
        assert all(file.read_bytes().startswith(PNG) for file in pictures)


def test_the_page_of_a_users_topic_shows_a_saved_page():
    text = (PROJECT / "docs" / "your-topic.md").read_text("utf-8")
    (name,) = re.findall(r"!\[.+\]\(images/(\w+\.png)\)", text)
    assert f'to / "{name}"' in (IMAGES / "tutorials.py").read_text("utf-8")
    assert (IMAGES / name).read_bytes().startswith(PNG)


def test_the_notebook_that_is_pictured_uses_what_there_is():
    text = SCRIPT.read_text("utf-8").partition('NOTEBOOK = f"""')[2].partition('"""')[0]
    import topiclake as tl

    assert [name for name in re.findall(r"\btl\.(\w+)", text) if not hasattr(tl, name)] == []
