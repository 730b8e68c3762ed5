"""The pages of one table and of one reason: what is read for them, of whom, and when."""

from __future__ import annotations

import shlex
import shutil
import sqlite3
import threading
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from tests.support.delta_logs import BEGAN, added, made, write_log, write_quarantine
from topiclake.config.load import load_settings
from topiclake.config.pipeline import REPLAYS
from topiclake.errors import StorageError
from topiclake.ingest.quarantine import replay_claims
from topiclake.monitoring.reports import read_report
from topiclake.monitoring.store import Run, Store
from topiclake.streaming.batch_counts import TableCount
from workbench.commands.cli import cli
from workbench.dashboard import quarantined
from workbench.dashboard.delta_log import SMALL_BYTES, SMALL_FILES, read_table
from workbench.dashboard.drilldown import page, small_tables
from workbench.dashboard.quarantined import FIRST_BYTES, RECORDS, read_records
from workbench.dashboard.readings import Readings
from workbench.dashboard.snapshot import table_id

ROOT = Path(__file__).parents[3]


def files(number, size=1000, **partition):
    return [added(f"{n}.parquet", size, **partition) for n in range(number)]


def test_a_table_is_told_with_its_newest_versions_by_whom_and_how_many_files_each_had(tmp_path):
    batch = {"writer": "gps/1", "pipeline": "gps", "batch_id": 7}
    write = made("WRITE", 5, batch, numFiles=3, numOutputRows=30, numOutputBytes=3000)
    merge = made("OPTIMIZE", 6, numAddedFiles=1, numRemovedFiles=3, numAddedBytes=2500)
    gone = [{"remove": {"path": f"{n}.parquet", "dataChange": False}} for n in range(3)]
    folder = write_log(
        tmp_path, [[write, *files(3)], [merge, *gone, added("m.parquet", 2500, 30)], [made("SET")]]
    )
    facts = read_table(f"file:{folder}")
    assert (facts["version"], facts["files"], facts["bytes"], facts["rows"]) == (3, 1, 2500, 30)
    assert (facts["rows_at_most"], facts["small"]) == (False, None)
    assert facts["points"] == {"version": [0, 1, 2, 3], "files": [0, 3, 1, 1]}
    assert [one["version"] for one in facts["versions"]] == [3, 2, 1, 0]
    assert facts["versions"][2] == {
        "version": 1,
        "at": 5.0,
        "operation": "WRITE",
        "added": 3,
        "removed": 0,
        "rows": 30,
        "bytes": 3000,
        "who": "gps, batch 7",
    }
    # A checkpoint in the place of old commits.
    DeltaTable(str(folder)).create_checkpoint()
    for version in (0, 1):
        (folder / "_delta_log" / f"{version:020}.json").unlink()
    later = read_table(str(folder))
    assert later["points"] == {"version": [2, 3], "files": [1, 1]}
    assert later | {"points": 0, "versions": 0} == facts | {
        "points": 0,
        "versions": 0,
        "optimize": later["optimize"],
    }


def test_the_rows_of_a_merge_are_those_that_it_has_changed(tmp_path):
    rows = {"numTargetRowsInserted": 2, "numTargetRowsUpdated": 3, "numTargetRowsDeleted": 1}
    merge = made("MERGE", numTargetFilesAdded=1, numOutputRows=1000, numTargetRowsCopied=995, **rows)
    facts = read_table(str(write_log(tmp_path, [[merge, added("a.parquet", 7, 1000)]])))
    assert facts["versions"][0]["rows"] == 6


def test_what_a_commit_does_not_tell_is_left_open(tmp_path):
    silent = made("WRITE")
    del silent["commitInfo"]["operationMetrics"]
    facts = read_table(str(write_log(tmp_path, [[silent, added("a.parquet", 7, None)]])))
    assert (facts["files"], facts["rows"], facts["versions"][0]["added"]) == (1, None, None)
    assert facts["points"] == {"version": [1], "files": [1]}


def test_rows_that_deletion_vectors_took_out_are_not_counted_out(tmp_path):
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
    file = added("a.parquet", 7)
    file["add"]["deletionVector"] = vector | {"sizeInBytes": 40, "cardinality": 6}
    facts = read_table(str(write_log(tmp_path, [[made("DELETE"), file]], features=["deletionVectors"])))
    assert (facts["rows"], facts["rows_at_most"]) == (10, True)


def test_a_table_without_a_row_has_no_file_and_no_warning(tmp_path):
    facts = read_table(str(write_log(tmp_path, [])))
    assert (facts["version"], facts["files"], facts["bytes"], facts["rows"], facts["small"]) == (
        0,
        0,
        0,
        0,
        None,
    )


@pytest.mark.parametrize(
    ("number", "size", "is_reported"),
    [
        (SMALL_FILES + 1, 1000, True),
        (SMALL_FILES + 1, SMALL_BYTES - 1, True),
        (SMALL_FILES, 1000, False),
        (SMALL_FILES + 1, SMALL_BYTES, False),
        (3 * SMALL_FILES, 2**30, False),
    ],
)
def test_many_small_files_are_told_and_few_or_large_ones_are_not(tmp_path, number, size, is_reported):
    facts = read_table(str(write_log(tmp_path / "a `table`", [[made("WRITE"), *files(number, size)]])))
    assert facts["small"] == ({"files": number, "bytes": number * size} if is_reported else None)
    assert facts["optimize"] == f"OPTIMIZE delta.`{tmp_path}/a ``table```"


def test_files_that_stand_alone_in_their_partitions_are_not_to_be_merged(tmp_path):
    alone = [added(f"alone-{n}", 9, day=str(n)) for n in range(2 * SMALL_FILES)]
    assert read_table(str(write_log(tmp_path / "a", [[made("WRITE"), *alone]], ["day"])))["small"] is None
    more = [made("WRITE"), *alone, *files(SMALL_FILES + 1, 9, day="5")]
    facts = read_table(str(write_log(tmp_path / "b", [more], ["day"])))
    assert facts["small"] == {"files": SMALL_FILES + 2, "bytes": 9 * (SMALL_FILES + 2)}


@pytest.mark.parametrize("name", ["a b", "München 東京", "100% sure", "a?b#c;d", "[x]*{y}", "it's"])
def test_a_folder_is_read_whatever_its_name_is(tmp_path, name):
    assert read_table(f"file:{write_log(tmp_path / name, [[made('WRITE'), *files(2)]])}")["files"] == 2


def test_a_name_that_means_another_folder_in_an_address_is_refused(tmp_path):
    write_log(tmp_path / "a b", [])
    with pytest.raises(StorageError, match="% before two digits") as raised:
        read_table(str(write_log(tmp_path / "a%20b", [])))
    assert raised.value.fields["reason"] == "name"


def test_a_table_that_was_deleted_or_broken_or_is_elsewhere_is_a_line_with_what_to_do(tmp_path):
    folder = write_log(tmp_path / "t", [[made("WRITE"), *files(1)]])
    (folder / "_delta_log" / f"{1:020}.json").write_text("{broken")
    with pytest.raises(StorageError, match="Json error") as broken:
        read_table(str(folder))
    assert "\n" not in str(broken.value)
    shutil.rmtree(folder)
    with pytest.raises(StorageError, match=f"DESCRIBE DETAIL delta.`{folder}`") as deleted:
        read_table(str(folder))
    assert deleted.value.fields["reason"] == "missing"
    with pytest.raises(StorageError, match="wasbs:") as elsewhere:
        read_table("wasbs://container@account.blob.core.windows.net/t")
    assert elsewhere.value.fields["reason"] == "scheme"


def test_no_login_of_an_address_is_told(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError("GET https://u:pw@store/t?sv=1&sig=abc%3D failed\n ↳ why\n   0: stack")

    monkeypatch.setattr("deltalake.DeltaTable", refuse)
    with pytest.raises(StorageError) as refused:
        read_table("s3a://bucket/t")
    assert refused.value.fields == {
        "reason": "unreadable",
        "detail": "GET https://…store/t… failed: why",
    }
    assert "pw" not in str(refused.value)
    assert "abc" not in str(refused.value)


def test_the_newest_records_of_a_reason_are_read_with_their_first_bytes(tmp_path):
    hostile = b"<script>alert(1)</script>\x00\xff" + b"x" * 5000
    write_quarantine(tmp_path / "q", [{"offset": n, "value": b"v"} for n in range(30)])
    write_quarantine(
        tmp_path / "q",
        [
            {"offset": 40, "key": b"<i>", "value": hostile, "detail": None},
            {"offset": 41, "reason": "it's", "partition": 3},
            {"offset": 42, "reason": "tombstone"},
        ],
    )
    facts = read_records(str(tmp_path / "q"), "bad_magic")
    assert [one["offset"] for one in facts["records"]] == [40, *range(29, 29 - RECORDS + 1, -1)]
    assert (facts["is_all"], facts["partitions"]) == (True, [{"topic": "t", "partition": 0, "records": 31}])
    newest = facts["records"][0]
    assert newest["value"]["hex"] == hostile[:FIRST_BYTES].hex()
    assert newest["value"]["text"].startswith("<script>alert(1)</script>��xx")
    assert newest["value"]["length"] == len(hostile)
    assert (newest["key"]["text"], newest["detail"], newest["is_replayed"]) == ("<i>", None, False)
    claims = pa.table(
        {
            "topic": ["t", "t", "t"],
            "partition": pa.array([0, 0, 0], pa.int32()),
            "offset": [40, 29, 28],
            "quarantined_at": [BEGAN + timedelta(seconds=one) for one in (40, 29, 0)],
            "replay": ["ended", "begun", "of another row at the same offset"],
            "replayed_at": pa.array([BEGAN, None, BEGAN], pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(f"{tmp_path / 'q'}{REPLAYS}", claims)
    claimed = read_records(str(tmp_path / "q"), "bad_magic")["records"]
    assert [one["offset"] for one in claimed] == [one["offset"] for one in facts["records"]]
    assert [one["offset"] for one in claimed if one["is_replayed"]] == [40]
    assert tuple(quarantined.CLAIM_KEY.replace('"', "").split(", ")) == replay_claims.KEY
    (quoted,) = read_records(str(tmp_path / "q"), "it's")["records"]
    assert (quoted["partition"], quoted["key"], quoted["value"]) == (3, None, None)


def test_of_a_large_quarantine_only_the_newest_files_are_read(tmp_path, monkeypatch):
    for first in (0, 10, 20):
        some = [{"offset": n, "value": bytes(str(n) * 50, "ascii")} for n in range(first, first + 10)]
        write_quarantine(tmp_path / "q", some)
    sizes = [file.stat().st_size for file in (tmp_path / "q").glob("*.parquet")]
    monkeypatch.setattr(quarantined, "SEARCHED", (1, max(sizes) * 2))
    facts = read_records(str(tmp_path / "q"), "bad_magic")
    assert [one["offset"] for one in facts["records"]] == list(range(29, 9, -1))
    assert (facts["is_all"], facts["partitions"]) == (False, None)
    monkeypatch.setattr(quarantined, "SEARCHED", (1, 1))
    assert [one["offset"] for one in read_records(str(tmp_path / "q"), "bad_magic")["records"]] == list(
        range(29, 19, -1)
    )


def test_a_large_quarantine_whose_files_tell_no_times_is_not_looked_through(tmp_path, monkeypatch):
    monkeypatch.setattr(quarantined, "SEARCHED", (1, 1))
    with pytest.raises(StorageError, match="workbench quarantine show") as raised:
        read_records(str(write_log(tmp_path, [[made("WRITE"), *files(2)]])), "bad_magic")
    assert raised.value.fields == {"reason": "too_large"}


class Slow:
    """Reads when it is let, and counts."""

    def __init__(self):
        self.let, self.calls, self.at_once = threading.Event(), 0, 0

    def __call__(self, path, *given):
        self.calls += 1
        self.at_once += 1
        assert self.let.wait(60)
        self.at_once -= 1
        return {"read": [path, *given]}


def result_of(readings, read, *given, seconds=60.0):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (found := readings.get(read, *given, seconds=seconds)) is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("it was never read")


def test_a_table_is_read_beside_the_page_once_at_a_time_and_kept_a_while():
    readings, slow = Readings(), Slow()
    assert [readings.get(slow, "/t", str(n % 2)) for n in range(50)] == [None] * 50
    assert slow.calls == 1
    # Tables that do not answer hold up a few others, and no more threads.
    for number in range(50):
        readings.get(slow, f"/{number}")
    assert slow.at_once == slow.calls == 4
    slow.let.set()
    for given in ("0", "1"):
        assert result_of(readings, slow, "/t", given) == {"read": ["/t", given]}
    calls = slow.calls
    assert result_of(readings, slow, "/t", "0") == {"read": ["/t", "0"]}
    assert slow.calls == calls


def test_what_is_old_is_read_again_and_what_took_long_only_after_a_rest():
    readings, calls = Readings(), []

    def read(path, seconds):
        calls.append(path)
        time.sleep(float(seconds))
        return {"number": len(calls)}

    assert result_of(readings, read, "/t", "0") == {"number": 1}
    deadline = time.monotonic() + 60
    while readings.get(read, "/t", "0", seconds=0.0) == {"number": 1}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    result_of(readings, read, "/long", "1")
    calls.clear()
    for _ in range(10):
        readings.get(read, "/long", "1", seconds=0.0)
    assert calls == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StorageError("why", "what"), {"problem": "why", "remedy": "what"}),
        (ValueError("a secret"), {"problem": "it cannot be read: ValueError", "remedy": ""}),
        (BaseException("a panic"), {"problem": "it cannot be read: BaseException", "remedy": ""}),
    ],
)
def test_what_cannot_be_read_is_told(error, expected):
    def fail(_):
        raise error

    assert result_of(Readings(), fail, "/t") == expected


@pytest.fixture
def store(tmp_path):
    made_here = Store(tmp_path / "reports.db")
    yield made_here
    made_here.close()


RUN = Run("r", "q", "gps", "tests", 1, 0.0)


def add(store, batch_id, *counts, at=None):
    begun = f"2026-01-02T03:04:{batch_id:02}Z"
    report = read_report(f'{{"batchId": {batch_id}, "timestamp": "{begun}", "sources": []}}')
    store.add(RUN, report, {}, counts, at or report.at + 0.5)
    return report.at


def waiting(**reasons):
    return TableCount("file:/my lake/t_quarantine", sum(reasons.values()), reasons)


def test_a_reason_is_told_with_its_course_over_all_batches(store):
    begun = [
        add(store, 0, waiting(bad_magic=2)),
        add(store, 1),
        add(store, 2, waiting(bad_magic=1, too_short=4)),
        # A topic that is resumed tells of two batches at once.
        add(store, 3, waiting(bad_magic=1), waiting(bad_magic=5)),
    ]
    shown = page(store, Readings(), "reason/q/bad_magic")
    assert (shown["name"], shown["rows"], shown["is_older"]) == ("gps", 9, False)
    assert (shown["first"], shown["last"]) == (begun[0] + 0.5, begun[3] + 0.5)
    assert shown["points"] == {"at": begun, "rows": [2, 0, 1, 6]}
    assert [(one["path"], one["rows"]) for one in shown["tables"]] == [("file:/my lake/t_quarantine", 9)]


def test_what_is_forgotten_or_was_counted_before_batches_were_is_told_as_older(tmp_path):
    file = tmp_path / "old" / "reports.db"
    old = Store(file)
    at = add(old, 0, waiting(bad_magic=2))
    old.close()
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE reason_batches")
    database.close()
    store = Store(file)
    shown = page(store, Readings(), "reason/q/bad_magic")
    assert (shown["rows"], shown["first"], shown["is_older"]) == (2, None, True)
    assert shown["points"] == {"at": [at], "rows": [0]}
    later = add(store, 5, waiting(bad_magic=1))
    store.forget(later)
    shown = page(store, Readings(), "reason/q/bad_magic")
    assert (shown["rows"], shown["first"], shown["is_older"]) == (3, later + 0.5, True)
    assert shown["points"] == {"at": [later], "rows": [1]}
    store.close()


def test_counts_by_batch_are_forgotten_when_they_are_old_and_when_their_query_is(store):
    at = add(store, 0, waiting(bad_magic=1))
    store.heartbeat("r", at + 100)
    store.forget(at + 10)
    assert store.rows("SELECT * FROM reason_batches") == []
    assert page(store, Readings(), "reason/q/bad_magic")["rows"] == 1
    add(store, 1, waiting(bad_magic=1), at=at + 1000)
    store.end("r", at, None, "")
    store.forget(at + 10)
    assert store.rows("SELECT * FROM reason_batches") == []


def test_only_tables_that_a_query_has_written_are_read(store, tmp_path):
    own, other = write_log(tmp_path / "own", []), write_log(tmp_path / "other", [])
    add(store, 0, TableCount(str(own), 1))
    readings, address = Readings(), f"table/q/{table_id(str(own))}"
    assert result_of(readings, read_table, str(own))["version"] == 0
    shown = page(store, readings, address)
    assert (shown["kind"], shown["table"]["path"], shown["read"]["version"]) == ("table", str(own), 0)
    for wrong in (
        f"table/q/{table_id(str(other))}",
        f"table/q/{other}",
        f"table/p/{table_id(str(own))}",
        f"table/q/{str(own).replace('/', '%2F')}",
        "reason/q/bad_magic",
        "reason/q/' OR 1=1 --",
        "table",
        "table//",
        "__init__/q/x",
        "q",
        "",
        "%",
    ):
        assert page(store, readings, wrong) is None, wrong


def test_small_files_are_told_beside_the_tables_of_a_query(store, tmp_path):
    many = write_log(tmp_path / "many", [[made("WRITE"), *files(SMALL_FILES + 1)]])
    few = write_log(tmp_path / "few", [[made("WRITE"), *files(2)]])
    add(store, 0, TableCount(str(many), 1), TableCount(str(few), 1))
    readings = Readings()
    assert small_tables(store, readings, "q") == {}
    for path in (many, few):
        result_of(readings, read_table, str(path))
    assert small_tables(store, readings, "q") == {
        table_id(str(many)): {"files": SMALL_FILES + 1, "bytes": 1000 * (SMALL_FILES + 1)}
    }


def test_the_commands_are_those_of_the_workbench_and_lead_to_this_quarantine(store, monkeypatch):
    store.rows("INSERT INTO partitions VALUES ('q', 'hits', 0, 1, 0, 0, 0)")
    add(store, 0, waiting(bad_magic=1, undecodable=1))
    (table,) = page(store, Readings(), "reason/q/bad_magic")["tables"]
    assert table["commands"] == [
        "python -m workbench quarantine show --reason bad_magic -p topic=hits -p 'table_path=file:/my lake/t'"
    ]
    (table,) = page(store, Readings(), "reason/q/undecodable")["tables"]
    assert [shlex.split(one)[4] for one in table["commands"]] == ["show", "replay"]
    asked = []
    monkeypatch.setattr("workbench.runner.run.run_for_value", lambda _, given, *__: asked.append(given))
    for command in table["commands"]:
        CliRunner().invoke(cli, shlex.split(command)[3:])
    assert [one["action"] for one in asked] == ["show", "replay"]
    places = {"KAFKA": "localhost:1", "SCHEMA_REGISTRY": "http://localhost:2", "DATALAKE": "file:///lake"}
    for name, place in places.items():
        monkeypatch.setenv(f"WORKBENCH_{name}", place)
    given = {name: asked[0][name] for name in ("topic", "table_path")}
    settings = load_settings("gps", given, conf=ROOT / "conf")
    assert settings.pipeline.quarantine_path == "file:/my lake/t_quarantine"


def test_a_named_table_is_read_by_its_folder_and_commands_have_its_name(store, tmp_path):
    folder = write_log(tmp_path / "gps", [])
    add(store, 0, TableCount("lake.raw.gps", 1, folder=str(folder)))
    add(store, 1, TableCount("lake.raw.gps_quarantine", 1, {"bad_magic": 1}, folder="file:/t_quarantine"))
    readings = Readings()
    assert result_of(readings, read_table, str(folder), "lake.raw.gps")["version"] == 0
    shown = page(store, readings, f"table/q/{table_id('lake.raw.gps')}")
    assert shown["table"]["path"] == "lake.raw.gps"
    assert shown["read"]["optimize"] == "OPTIMIZE `lake`.`raw`.`gps`"
    (table,) = page(store, readings, "reason/q/bad_magic")["tables"]
    assert shlex.split(table["commands"][0])[-1] == "table=lake.raw.gps"
