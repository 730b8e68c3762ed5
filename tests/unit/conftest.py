"""What several unit tests share."""

from __future__ import annotations

import os

import pytest

from workbench.notebook.files import read_notebook


@pytest.fixture(autouse=True)
def _same_variables():
    """Check that no test leaves the next one other environment variables."""
    before = _variables()
    yield
    assert _variables() == before


def _variables():
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture
def parse(tmp_path):
    """Read a notebook from its bytes, or from its text."""

    def written(content):
        path = tmp_path / "notebook.py"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_notebook(path)

    return written
