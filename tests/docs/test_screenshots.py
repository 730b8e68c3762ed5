"""The pictures of the dashboard can be taken anew, and show what they are said to."""

import subprocess
import sys
from pathlib import Path

from tests.environment import succeeded, without_workbench

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PNG = b"\x89PNG"


def test_the_pictures_of_the_dashboard_are_taken_by_a_command(tmp_path):
    command = [sys.executable, str(IMAGES / "screenshots.py"), "--to", str(tmp_path)]
    done = subprocess.run(
        command, env=without_workbench(), capture_output=True, text=True, timeout=900, check=False
    )
    succeeded(done)
    taken = {file.name for file in tmp_path.iterdir() if file.read_bytes().startswith(PNG)}
    assert taken == {"dashboard.png", "dashboard_query.png", "dashboard_reason.png"}
    assert all((IMAGES / name).is_file() for name in taken)
