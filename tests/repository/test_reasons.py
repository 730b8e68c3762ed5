"""What is said of a record: the same words in code, views, dashboard and docs."""

import ast
import re
from pathlib import Path

from topiclake import reasons
from topiclake.ingest.quarantine import views
from topiclake.reasons import OTHER, REASONS
from workbench.dashboard import drilldown

PROJECT = Path(__file__).parents[2]
#: Reasons of changes, which the ingest of a topic does not give.
OF_CHANGES = {"no_key", "no_order", "unavailable_value"}
#: The one module that spells reasons.
ONLY = PROJECT / "src" / "topiclake" / "reasons.py"


def in_table(page):
    """The reasons in the first column of the table that has `undecodable`."""
    lines = (PROJECT / "docs" / page).read_text("utf-8").splitlines()
    (row,) = (number for number, line in enumerate(lines) if line.startswith("| `undecodable`"))
    first = max(number for number in range(row) if not lines[number].startswith("|"))
    end = min(number for number in range(row, len(lines)) if not lines[number].startswith("|"))
    columns = [line.split("|")[1] for line in lines[first + 1 : end]]
    return {name for column in columns for name in re.findall(r"`(\w+)`", column)}


def test_each_reason_has_a_meaning_and_those_that_stay_no_replay():
    meanings = [reason.meaning for reason in (*REASONS.values(), OTHER)]
    assert len(set(meanings)) == len(meanings)
    # docs/replay.md
    stay = {name for name, reason in REASONS.items() if not reason.may_replay}
    assert stay == {"tombstone", "too_short", "bad_magic", "no_key", "no_order"}


def test_each_constant_is_a_reason_and_each_reason_a_constant():
    constants = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    assert constants == {*REASONS, "ok"}


def test_views_and_dashboard_read_the_same_reasons():
    assert views.REASONS is REASONS
    assert drilldown.REASONS is REASONS


def test_the_docs_have_the_same_reasons():
    assert in_table("exactly-once.md") == {*REASONS, "ok"} - OF_CHANGES
    # Of values with schemas that are JSON or Protobuf.
    assert in_table("kafka.md") == set(REASONS) - OF_CHANGES
    assert in_table("changes.md") == {*OF_CHANGES, "undecodable", "refused_by_table"}


def test_no_other_module_spells_a_reason():
    found = [
        f"{file.relative_to(PROJECT)}, line {node.lineno}: {node.value}"
        for folder in ("topiclake", "workbench")
        for file in sorted((PROJECT / "src" / folder).rglob("*.py"))
        if file != ONLY
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in REASONS
    ]
    assert found == []
