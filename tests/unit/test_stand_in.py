"""No test changes a function that other threads of its process may call."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Their names that tests set are values, or functions of the main thread alone.
SHARED = {"signal", "sys", "tempfile"}


def changed_for_all(source: str) -> list[str]:
    """Return each `setattr` on a module of Python's library, as text."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"]
    return [ast.unparse(call) for call in named if _module(call.args[0]) in sys.stdlib_module_names - SHARED]


def _module(target: ast.expr) -> str:
    if isinstance(target, ast.Constant):
        # A string ends with the name that is set.
        return str(target.value).split(".")[-2]
    return ast.unparse(target).split(".")[-1]


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(time, "sleep", f)',
        'monkeypatch.setattr(event_stream.time, "sleep", f)',
        'patched.setattr("workbench.host.home.shutil.rmtree", f)',
    ],
)
def test_a_change_for_all_threads_is_found(source: str) -> None:
    assert changed_for_all(source) == [source.replace('"', "'")]


@pytest.mark.parametrize("file", sorted(TESTS.rglob("*.py")), ids=lambda file: str(file.relative_to(TESTS)))
def test_each_change_is_one_modules_own(file: Path) -> None:
    assert changed_for_all(file.read_text("utf-8")) == []
