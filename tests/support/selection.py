"""Which tests `make test` leaves to `make test-all`, and in which order the files run.

CONTRIBUTING.md says what each mark means. A mark without its reason is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from time import perf_counter

import pytest

#: Tests with one of these marks run in `make test-all` only.
ONLY_IN_ALL = ("thorough", "root")
MARKS = ("slow", *ONLY_IN_ALL)
#: The dearest files of a whole run, dearest first: a file stays on one worker, so these must not begin last.
LONGEST_FIRST = (
    "notebooks/test_guides.py",
    "integration/workbench/test_wheel.py",
    "notebooks/test_shop.py",
    "integration/storage/test_stores.py",
    "spark/ingest/test_micro_batch.py",
    "integration/workbench/test_cluster.py",
    "notebooks/test_tutorials.py",
    "notebooks/test_databricks.py",
    "spark/ingest/test_change_batch.py",
    "docs/test_docstrings.py",
    "spark/ingest/test_replay.py",
    "integration/ingest/test_topics.py",
    "integration/ingest/test_crashes.py",
    "spark/ingest/test_audit.py",
    "notebooks/test_gps.py",
    "docs/test_readme.py",
    "integration/storage/test_renewal.py",
    "integration/examples/test_taxi_s3.py",
    "integration/examples/test_taxi.py",
    "integration/storage/test_wasbs.py",
    "notebooks/test_runner.py",
    "integration/sinks/test_sinks.py",
    "integration/workbench/test_secure_services.py",
    "integration/sinks/test_jdbc.py",
    "integration/ingest/test_consumer_groups.py",
    "integration/schema_registry/test_registry_outage.py",
    "integration/formats/test_json.py",
    "integration/sources/test_registered_values.py",
    "spark/ingest/test_tables.py",
    "spark/formats/test_decode.py",
)
#: Seconds that a test spent on fixtures of the whole session, which it is not to blame for.
SHARED_SECONDS = "shared_seconds"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the marks, note them in the report, and sort the files."""
    for item in items:
        item.user_properties += [
            (mark.name, _reason(item, mark)) for mark in item.iter_markers() if mark.name in MARKS
        ]
    ranks = {f"tests/{file}": rank for rank, file in enumerate(LONGEST_FIRST)}
    # A sort keeps the order of equals.
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Note how long a fixture of the whole session took, with the test that asked for it first."""
    began = perf_counter()
    result = yield
    if fixturedef.scope == "session":
        request._pyfuncitem.user_properties.append((SHARED_SECONDS, f"{perf_counter() - began:.1f}"))
    return result


def thorough_for(some: Sequence[str], values: Iterable[str], reason: str) -> list[object]:
    """Return the values of a test's parameter; only `make test-all` runs it for some of them."""
    mark = pytest.mark.thorough(reason)
    return [pytest.param(value, marks=mark) if value in some else value for value in values]


def always_runs(file: Path, test: str = "") -> bool:
    """Return whether `make test` runs the test, or any test of the file where none is named.

    A test that is marked for some of its parameters only runs with the others.
    """
    tree = ast.parse(file.read_text("utf-8"))
    statements = [node for node in tree.body if isinstance(node, ast.Assign)]
    if _is_left_out(node.value for node in statements if _names(node) == ["pytestmark"]):
        return False
    tests = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return any(not _is_left_out(node.decorator_list) for node in tests if test in ("", node.name))


def _reason(item: pytest.Item, mark: pytest.Mark) -> str:
    if len(mark.args) != 1 or mark.kwargs or not isinstance(mark.args[0], str) or not mark.args[0]:
        raise pytest.UsageError(f"{item.nodeid}: the mark {mark.name} needs one reason, as text")
    return mark.args[0]


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _is_left_out(expressions: Iterable[ast.expr]) -> bool:
    return any(_mark_name(part) in ONLY_IN_ALL for expression in expressions for part in _parts(expression))


def _parts(expression: ast.expr) -> Sequence[ast.expr]:
    return expression.elts if isinstance(expression, (ast.List, ast.Tuple)) else [expression]


def _mark_name(expression: ast.expr) -> str:
    """Return `slow` for `pytest.mark.slow("…")`."""
    call = expression.func if isinstance(expression, ast.Call) else expression
    return call.attr if isinstance(call, ast.Attribute) else ""
