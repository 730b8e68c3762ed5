"""What `topiclake init` and `show` ask and print."""

from __future__ import annotations

import io

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from topiclake.errors import ConfigError
from workbench.commands.cli import main
from workbench.commands.show import print_rows
from workbench.commands.topic_options import make_request, topic_options
from workbench.commands.topic_sample import columns_of


def requested(*arguments, answers=""):
    requests = []

    @click.command()
    @topic_options
    def command(**options):
        requests.append(make_request("orders", options))

    result = CliRunner().invoke(command, arguments, input=answers, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return requests[0], result.output


def test_the_topic_has_the_name_of_the_pipeline_unless_it_is_given():
    request, output = requested()
    assert (request.topic, request.bootstrap, request.logins, output) == ("orders", "", {}, "")
    assert requested("--topic", "shop.orders")[0].topic == "shop.orders"


def test_passwords_are_asked_for_and_not_shown():
    request, output = requested(
        *("--bootstrap", "b:1", "--registry", "http://r", "--into", "s3a://bucket/lake"),
        *("--username", "me", "--registry-username", "you"),
        answers="first\nsecond\nAKIA\nthird\n",
    )
    assert request.kafka == {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    assert request.logins == {
        "kafka-username": "me",
        "kafka-password": "first",
        "registry-username": "you",
        "registry-password": "second",
        "storage-access-key": "AKIA",
        "storage-secret-key": "third",
    }
    assert not {"first", "second", "third", "AKIA"} & set(output.replace(":", " ").split())
    assert "first" not in repr(request)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (("--registry", "http://r"), "--registry"),
        (("--username", "me"), "--username"),
        (("--registry-username", "me"), "--registry-username"),
        (("--ca-file", "ca.pem"), "--ca-file"),
        (("--scope", "team"), "--scope"),
        (("--security-protocol", "SSL"), "--security-protocol"),
        (("--bootstrap", "b:1", "--security-protocol", "SSL", "--username", "me"), "--username"),
        (("--bootstrap", "b:1", "--sasl-mechanism", "PLAIN"), "--sasl-mechanism"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(given, option):
    with pytest.raises(ConfigError) as raised:
        requested("--topic", "orders", "--format", "json", *given)
    assert raised.value.fields == {"option": option, "reason": "no_effect"}


def test_a_bucket_may_be_opened_by_the_role_of_the_machine():
    request, _ = requested("--bootstrap", "b:1", "--into", "s3a://bucket", answers="\n")
    assert request.logins == {}
    assert request.kafka == {"security_protocol": "PLAINTEXT"}


def test_a_container_of_azure_needs_a_token():
    request, _ = requested(
        "--bootstrap", "b:1", "--into", "abfss://c@a.dfs.core.windows.net", answers="sig=1\n"
    )
    assert request.logins == {"storage-sas-token": "sig=1"}


def test_an_ingest_needs_a_pipeline_or_a_topic(capsys):
    assert main(["ingest"]) == 1
    assert "name a PIPELINE of conf/pipelines, or a --topic" in capsys.readouterr().err


def test_columns_follow_the_values_of_json():
    documents = [
        {"a": 1, "b": [], "c": 1},
        {"a": 2.5, "c": "x", "d": {"e": [True]}},
        {"a": None, "b": [2**70]},
    ]
    assert columns_of(documents) == "`a` DOUBLE, `b` STRING, `c` STRING, `d` STRUCT<`e`: ARRAY<BOOLEAN>>"
    assert columns_of([]) == ""


def test_names_that_differ_only_in_case_are_one_column():
    documents = [{"Id": 1, "to": {"Zip": "a", "zip": "b"}}, {"id": 2}]
    assert columns_of(documents) == "`Id` BIGINT, `to` STRUCT<`Zip`: STRING>"


def test_rows_are_shown_with_the_number_of_records():
    console = Console(width=100, record=True, file=io.StringIO())
    rows = [{"id": 1, "note": None, "_kafka": {"partition": 0, "offset": 7}}]
    print_rows(console, {"table": "/lake/[orders]", "records": 1_203, "rows": rows})
    text = console.export_text()
    assert "/lake/[orders]" in text
    assert '│ 1  │ –    │ {"partition": 0, "offset": 7} │' in text
    assert "1 rows; the table has 1,203 records" in text
