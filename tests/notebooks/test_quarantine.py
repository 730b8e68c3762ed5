"""`python -m workbench quarantine`: its notebook on real tables, and what people and programs get to see."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from rich.console import Console

from tests.support.environment import succeeded, without_workbench
from tests.support.local_rows import local_rows
from topiclake.delta import table as delta
from topiclake.ingest import registered_batch
from topiclake.ingest.targets import Target
from topiclake.kafka.source import RECORD_SCHEMA
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.sources.layout import Layout
from topiclake.sources.topic_schemas import TopicSchemas
from workbench.commands.quarantine import print_summary

PROJECT = Path(__file__).parents[2]
SCHEMA = json.dumps({"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}]})
FOUND = {
    "path": "/lake/gps_quarantine",
    "reasons": [
        {
            "reason": "unknown_schema_id",
            "schema_id": 70_001,
            "waiting": 1_234,
            "replayed": 0,
            "first": "2026-01-02T03:04:05Z",
            "last": "2026-01-02T03:04:05Z",
            "example": "the registry does not know [schema id 70001]",
        }
    ],
    "rows": [
        {
            "partition": 3,
            "offset": 5,
            "key": "[bold]k",
            "reason": "tombstone",
            "schema_id": None,
            "length": None,
            "first_bytes": None,
            "detail": "the value is null",
        }
    ],
    "replay": None,
}


@pytest.fixture
def quarantine(embedded, warm_jvm):
    """Run `python -m workbench quarantine` on the embedded services."""
    _, addresses = embedded

    def run(action: str, topic: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        place = ("-p", f"topic={topic}", "-p", f"table_path=/mnt/datalake/delta/{topic}")
        return subprocess.run(
            [sys.executable, "-m", "workbench", "quarantine", action, *place, *arguments],
            cwd=PROJECT,
            env=without_workbench() | addresses.environment() | warm_jvm.environment() | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def table(embedded, spark, request, tmp_path) -> str:
    """A table whose quarantine holds two records; the schema of one was registered after it."""
    _, addresses = embedded
    topic = re.sub(r"\W+", "-", request.node.name)[:60]
    registry = SchemaRegistry(addresses.schema_registry_url)
    registry.register(f"{topic}-value", SCHEMA)
    later = registry.register(f"{topic}-probe", json.dumps({"type": "string", "doc": topic})) + 1
    (tmp_path / "metadata").write_text('{"id": "11111111-aaaa"}')
    path = f"{addresses.datalake}/delta/{topic}".replace("file://", "file:")
    target = Target(
        pipeline="gps",
        run="run",
        mode="PERMISSIVE",
        schemas=TopicSchemas(registry, {"value": (f"{topic}-value",)}, Layout()),
        table=path,
        quarantine=f"{path}_quarantine",
        checkpoint=str(tmp_path),
    )
    values = [frame(later, b"\x0e"), b"{json}"]
    records = [(topic, 0, offset, None, b"key", value, None) for offset, value in enumerate(values)]
    registered_batch.write(target, local_rows(spark, records, RECORD_SCHEMA), 0)
    found = registry.register(f"{topic}-elsewhere", SCHEMA.replace('"E"', f'"E", "doc": "{topic}"'))
    assert found == later
    return path


@pytest.mark.thorough("the library's replay is tested in test_replay, the commands' output below")
@pytest.mark.slow("four notebooks by the command line")
def test_what_waits_is_shown_replayed_and_listed(quarantine, table, spark) -> None:
    topic = table.rpartition("/")[2]
    shown = quarantine("show", topic, "--reason", "bad_magic")
    (row,) = [line for line in succeeded(shown).splitlines() if "bad_magic" in line]
    assert "7B6A736F6E7D" in row
    assert "byte 0 is 0x7B, not 0x00" in row

    replayed = quarantine("replay", topic, "--json")
    result = json.loads(succeeded(replayed))
    assert (result["replay"]["replayed"], result["replay"]["waiting"]) == (1, {"bad_magic": 1})
    rows = delta.read(spark, table).select("id", F.col("_kafka.offset")).collect()
    assert [tuple(row) for row in rows] == [(7, 0)]

    listed = quarantine("list", topic)
    (row,) = [line for line in succeeded(listed).splitlines() if "unknown_schema_id" in line]
    # Reason, schema id, waiting, replayed.
    assert [cell.strip() for cell in row.split("│")][3:5] == ["0", "1"]


def printed(action: str, found: dict[str, object], width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_summary(console, found, action)
    return console.file.getvalue()


def test_reasons_are_a_table_with_numbers_that_read_well() -> None:
    text = printed("list", FOUND)
    assert "1,234" in text
    assert "│     70001 │" in text
    assert "the registry does not know [schema id 70001]" in text
    assert "tombstone" not in text


def test_reasons_and_times_are_whole_on_a_narrow_terminal() -> None:
    text = printed("list", FOUND, 80)
    assert all(whole in text for whole in ("unknown_schema_id", "2026-01-02", "03:04:05Z"))


def test_rows_are_a_table_and_what_is_in_them_is_no_markup() -> None:
    text = printed("show", FOUND)
    assert "[bold]k" in text
    assert "the value is null" in text
    assert "unknown_schema_id" not in text


def test_a_replay_says_what_it_did() -> None:
    replay = {"examined": 1_300, "replayed": 66, "waiting": {"unknown_schema_id": 1_234}, "claims": ["c"]}
    assert printed("replay", FOUND | {"replay": replay}).startswith("✓ 66 replayed, 1,234 wait on\n")


def test_an_empty_quarantine_says_so() -> None:
    assert "no record of the topic is in quarantine" in printed("list", FOUND | {"reasons": []})
