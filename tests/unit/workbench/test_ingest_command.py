"""What `python -m workbench ingest` prints."""

import io
import json

import pytest
from rich.console import Console

from topiclake.errors import ConfigError
from workbench.commands import init
from workbench.commands.cli import cli, main
from workbench.commands.ingest import KEYS, print_run
from workbench.commands.init import CreatedPipeline, Proposal
from workbench.commands.topic_options import Request
from workbench.commands.topic_sample import TopicSample
from workbench.runner import run

RUN = {
    "rows_written": 1_203,
    "quarantined": {"bad_magic": 2, "tombstone": 1},
    "table": {"path": "/lake/orders", "version": 4, "rows": 2_000},
    "quarantine": {"path": "/lake/orders_quarantine", "version": 1, "rows": 3},
    "audit": {"ok": True, "partitions": [{"in_kafka": 1_000}, {"in_kafka": 1_003}]},
}


def printed(result):
    console = Console(width=120, record=True, file=io.StringIO())
    print_run(console, result, "orders")
    return console.export_text()


def test_a_run_shows_its_counts_and_the_audit():
    text = printed(RUN)
    assert "1,203 in this run" in text
    assert "3 in this run bad_magic: 2, tombstone: 1" in text
    assert "2,000 (version 4)" in text
    assert "✓ each of the 2,003 records that Kafka holds is in exactly one place" in text


def test_a_table_without_kafka_column_is_not_called_audited():
    text = printed(RUN | {"audit": None})
    assert "nothing can be audited" in text
    assert "✓" not in text


def test_a_run_that_only_fills_the_quarantine_names_the_next_command():
    empty = RUN | {"rows_written": 0, "table": RUN["table"] | {"rows": 0}}
    assert "try: topiclake quarantine list orders" in printed(empty)
    for usual in (RUN, RUN | {"rows_written": 0}, empty | {"quarantined": {}}):
        assert "quarantine list" not in printed(usual)


@pytest.fixture
def asked(monkeypatch):
    """Return the runs of notebooks that the command asked for; none takes place."""
    asked = []

    def run_for_value(notebook, parameters, _home, keys, environment):
        asked.append((notebook.name, parameters, keys, environment))
        return RUN

    monkeypatch.setattr(run, "run_for_value", run_for_value)
    return asked


def test_the_command_runs_the_notebook_of_all_pipelines(asked, capsys):
    assert main(["ingest", "orders", "-p", "trigger=availableNow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == RUN
    assert asked == [("ingest.py", {"trigger": "availableNow", "pipeline": "orders"}, KEYS, {})]


def test_the_environment_is_a_parameter_of_the_run(asked):
    assert main(["ingest", "gps", "--env", "s3", "--topic", "gps", "--json"]) == 0
    assert asked == [("ingest.py", {"env": "s3", "pipeline": "gps"}, KEYS, {})]
    assert main(["ingest", "gps", "--env", "s3", "-p", "env=azure"]) != 0
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--bootstrap", "b:1"), ("--format", "json"), ("--ca-file", "a.pem"), ("--registry-username", "me")],
)
def test_an_existing_pipeline_accepts_no_option_that_would_be_ignored(asked, option, value):
    for topic in ([], ["--topic", "gps"]):
        with pytest.raises(ConfigError) as raised:
            cli.main(["ingest", "gps", *topic, option, value], standalone_mode=False)
        assert raised.value.fields == {"option": option, "reason": "no_effect"}
    assert asked == []


def test_a_folder_is_compared_with_that_of_the_pipeline_without_a_topic_too(asked):
    with pytest.raises(ConfigError) as raised:
        cli.main(["ingest", "gps", "--into", "./lake"], standalone_mode=False)
    assert raised.value.fields["key"] == "folder"
    assert asked == []


def test_a_topic_without_a_pipeline_gets_one_first(asked, monkeypatch, capsys):
    steps = []

    def create(_home, request):
        steps.append((request, list(asked)))
        return CreatedPipeline(
            (), TopicSample(3, 25), Proposal({"value_format": ("avro", "")}, "avro: 25", 3)
        )

    monkeypatch.setattr(init, "create_pipeline", create)
    assert main(["ingest", "--topic", "shop.orders", "--into", "./lake", "--json"]) == 0
    # The configuration precedes the run, and nothing of it is on standard output.
    assert steps == [(Request("shop.orders", "shop.orders", into="./lake"), [])]
    assert asked == [("ingest.py", {"pipeline": "shop.orders"}, KEYS, {})]
    output = capsys.readouterr()
    assert json.loads(output.out) == RUN
    assert "25 records in 3 partitions" in output.err
