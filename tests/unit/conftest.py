"""What several unit tests share."""

from __future__ import annotations

import pytest

from workbench.notebook.files import read_notebook


@pytest.fixture
def parse(tmp_path):
    """Read a notebook from its bytes, or from its text."""

    def written(content):
        path = tmp_path / "notebook.py"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_notebook(path)

    return written
