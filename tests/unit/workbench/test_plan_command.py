"""What `python -m workbench plan` prints."""

import io
import json

import pytest
from rich.console import Console

from workbench.commands.cli import main
from workbench.commands.plan import KEYS, print_plan
from workbench.host.java import short_lived
from workbench.runner import run

PLAN = {
    "pipeline": "orders",
    "value_format": "avro",
    "checkpoint_path": "/lake/c",
    "is_first_start": True,
    "records": 1_200,
    "seconds": 12.4,
    "has_changes": True,
    "ranges": [{"topic": "orders", "partition": 0, "first": 3, "after": 1_203, "records": 1_200}],
    "tables": [
        {
            "topic": "orders",
            "path": "/lake/orders",
            "quarantine_path": "/lake/orders_quarantine",
            "exists": True,
            "columns": "id INT",
            "changes": ["new: note string"],
            "schemas": [
                {"subject": "orders-value", "version": 1, "schema_id": 7, "refusal": ""},
                {
                    "subject": "orders-value",
                    "version": 2,
                    "schema_id": 9,
                    "refusal": "incompatible_schema: x",
                },
            ],
            "sample": {"ok": 997, "bad_magic": 3},
        }
    ],
}
NOTHING = PLAN | {"records": 0, "has_changes": False, "ranges": [], "is_first_start": False}


def printed(plan):
    console = Console(width=120, record=True, file=io.StringIO())
    print_plan(console, plan)
    return console.export_text()


def test_a_plan_shows_ranges_evidence_versions_table_and_changes():
    text = printed(PLAN)
    assert "orders │         0 │     3 │ 1,203 │   1,200" in text
    assert "format      avro; of 1,000 sampled records bad_magic: 3, ok: 997" in text
    assert "schema      orders-value, version 1, id 7: fits" in text
    assert "schema      orders-value, version 2, id 9: incompatible_schema: x" in text
    assert "table       /lake/orders (exists)" in text
    assert "change      new: note string" in text
    assert "quarantine  /lake/orders_quarantine" in text
    assert "checkpoint  /lake/c (begins)" in text
    assert "duration    about 12 s, by the last run's rate" in text
    assert "nothing to do" not in text


def test_a_plan_without_changes_says_so():
    assert "✓ nothing to do" in printed(NOTHING)
    assert "duration" not in printed(NOTHING)


def test_a_first_run_takes_a_time_that_nobody_knows():
    assert "duration    unknown" in printed(PLAN | {"seconds": None})


@pytest.mark.parametrize(("plan", "code"), [(PLAN, 2), (NOTHING, 0)])
def test_the_exit_code_says_whether_there_is_something_to_do(plan, code, monkeypatch, capsys):
    asked = []

    def run_for_value(notebook, parameters, _home, keys, environment):
        asked.append((notebook.name, parameters, keys, environment))
        return plan

    monkeypatch.setattr(run, "run_for_value", run_for_value)
    assert main(["plan", "orders", "-p", "env=s3", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == plan
    assert asked == [("plan.py", {"env": "s3", "pipeline": "orders"}, KEYS, short_lived())]


@pytest.mark.parametrize("arguments", [[], ["gps", "--nope"], ["gps", "-p", "x"]])
def test_wrong_arguments_are_an_error_and_no_changes(arguments):
    assert main(["plan", *arguments]) == 1


def test_a_sample_without_a_valid_record_names_the_next_step():
    table = PLAN["tables"][0] | {"sample": {"bad_magic": 1_000}}
    assert "try: another value_format in conf/pipelines/orders.yaml" in printed(PLAN | {"tables": [table]})
    for sample in ({}, {"tombstone": 9}, {"ok": 1, "bad_magic": 999}):
        assert "✗" not in printed(PLAN | {"tables": [table | {"sample": sample}]})
