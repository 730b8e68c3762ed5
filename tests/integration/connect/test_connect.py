"""The pipelines on a Spark Connect server: the client has no JVM, and a worker process writes the batches."""

import json
import textwrap
from collections import Counter
from datetime import datetime

import pytest

import topiclake as tl
from tests.spark.formats.test_bombs import BOMBS, schema, z
from tests.support.numbers_topic import SCHEMA, Numbers, crash_after_batch, right
from topiclake.delta import table as delta
from topiclake.delta import table_commits
from topiclake.formats.avro.diagnosis import has_free_items
from topiclake.kafka.admin import ensure_topic
from topiclake.monitoring.store import Store
from topiclake.schema_registry.wire_format import frame
from topiclake.session import AVRO_LIMITS
from workbench.dashboard.snapshot import overview

INGEST = """
query = tl.start_ingest(spark, settings)
tl.await_caught_up(query, settings.pipeline.trigger)
"""
AUDIT = "tl.audit_ingest(spark, settings).require_ok()\n"
#: Two records of each partition; one too short, two that name no schema, one of an unknown schema.
BAD = (b"", b"no Avro", b"1 more", frame(2**30, b"x"))


@pytest.fixture
def numbers(connected, tmp_path):
    return Numbers(connected, tmp_path)


def documented(text):
    """Return the schema of `right` with a documentation, so that the registry gives it another id."""
    return json.dumps(json.loads(SCHEMA) | {"doc": text})


def rows_of(spark, path):
    rows = delta.read(spark, path).select("n", "_kafka.partition", "_kafka.offset").collect()
    return sorted(tuple(row) for row in rows)


def reasons_of(spark, path):
    return Counter(row["reason"] for row in delta.read(spark, f"{path}_quarantine").collect())


def commits_of(spark, path):
    return [
        (commit.metadata["batch_id"], commit.writer) for commit in table_commits.read(spark, path).valid[::-1]
    ]


@pytest.mark.slow("two clients, and a Python worker for each query")
def test_the_ingest_on_spark_connect_has_each_record_in_one_place_also_after_a_crash(
    numbers, connect_server, spark, catalog_schema
):
    numbers.topic("a")
    table = f"{catalog_schema}.numbers"
    schema_id, settings = numbers.register("a"), numbers.settings(table=table)
    numbers.send("a", *(right(schema_id, n) for n in range(10)), *BAD)
    connect_server.run(INGEST, settings=settings)
    assert rows_of(spark, table) == [(n, n % 2, n // 2) for n in range(10)]
    assert reasons_of(spark, table) == {"too_short": 1, "bad_magic": 2, "unknown_schema_id": 1}
    # The second commit says that the unknown schema stayed unknown.
    commits = commits_of(spark, table)
    (writer, late) = (name for _, name in commits)
    assert [(0, writer), (0, late)] == commits

    crash_after_batch(numbers.folder / "checkpoint", 0)
    numbers.send("a", *(right(schema_id, n) for n in range(10, 14)))
    done = connect_server.run(INGEST + AUDIT, settings=settings)
    assert rows_of(spark, table) == [(n, n % 2, n // 2 + 2 * (n > 9)) for n in range(14)]
    assert reasons_of(spark, table).total() == 4
    assert commits_of(spark, table) == [*commits, (1, writer)]
    assert "Python checks each record" not in done.stderr


@pytest.mark.thorough("the text of errors on the same server")
def test_the_error_of_a_batch_on_spark_connect_names_the_record(numbers, connect_server):
    numbers.topic("a")
    numbers.send("a", right(numbers.register("a"), 0), b"no Avro")
    failing = f"""
from topiclake.errors import DecodeError
try:
{textwrap.indent(INGEST, "    ")}
except DecodeError as error:
    print(error.fields["partition"], error.fields["offset"], error.fields["reason"])
"""
    done = connect_server.run(failing, settings=numbers.settings(mode="FAILFAST"))
    assert done.stdout.split() == ["1", "0", "bad_magic"]


@pytest.mark.thorough("the dashboard's reports on the same server")
def test_the_reports_of_a_query_on_spark_connect_have_its_lag_and_its_end(numbers, connect_server, tmp_path):
    numbers.topic("a")
    numbers.send("a", right(numbers.register("a"), 0), b"no Avro")
    file = tmp_path / "reports.db"
    watched = (
        f"monitor = tl.monitor_queries(spark, {str(file)!r})\n{INGEST}tl.stop_monitoring(spark, monitor)\n"
    )
    done = connect_server.run(watched, settings=numbers.settings())
    assert "on Spark Connect, counts of rows are missing" in done.stderr
    store = Store(file)
    (query,) = overview(store)
    store.close()
    assert (query["state"], query["lag_records"], query["lag_seconds"]) == ("ended", 0, 0.0)
    # Spark counts a record for each job that reads it.
    assert query["rows"] > 2
    assert (query["written"], query["quarantined"]) == (None, {})


@pytest.mark.thorough("further pipelines on the same server")
@pytest.mark.slow("three pipelines")
def test_several_topics_replay_and_a_new_schema_on_spark_connect(numbers, connect_server, spark):
    for name in ("a", "b"):
        numbers.topic(name)
    schema_id, settings = numbers.register("a"), numbers.settings(**numbers.several)
    numbers.send("a", *(right(schema_id, n) for n in range(4)))
    numbers.send("b", *(right(schema_id, n) for n in range(6)))
    connect_server.run(INGEST, settings=settings)
    assert len(rows_of(spark, f"{numbers.folder}/tables/{numbers.topic_name('a')}")) == 4
    numbers.register("b")
    connect_server.run(INGEST + AUDIT, settings=settings)
    assert len(rows_of(spark, f"{numbers.folder}/tables/{numbers.topic_name('b')}")) == 6

    one = numbers.settings(checkpoint_path=f"{numbers.folder}/checkpoint_of_a")
    of_probe, of_record = (json.dumps({"type": "string", "doc": numbers.name}), documented(numbers.name))
    later = numbers.registry.register(f"{numbers.name}-probe", of_probe) + 1
    numbers.send("a", frame(later, right(schema_id, 9)[5:]))
    replay = "replay = tl.replay_quarantine(spark, settings)\nprint(replay.replayed, replay.waiting)\n"
    waiting = connect_server.run(INGEST + replay, settings=one).stdout.strip()
    assert waiting == "0 {'unknown_schema_id': 1}"
    assert reasons_of(spark, f"{numbers.folder}/table") == {"unknown_schema_id": 1}
    assert numbers.registry.register(f"{numbers.name}-elsewhere", of_record) == later
    for replayed in (1, 0):
        assert connect_server.run(replay, settings=one).stdout.strip() == f"{replayed} {{}}"
    assert sorted(n for n, *_ in rows_of(spark, f"{numbers.folder}/table")) == [0, 1, 2, 3, 9]


@pytest.mark.thorough("further formats and sinks on the same server")
@pytest.mark.slow("several queries")
def test_declared_json_sinks_and_changes_on_spark_connect(hits, connect_server, spark, catalog_schema):
    """The next test repeats batches of such tables."""
    hits.publish(20)
    hits.send(b"no JSON")
    copy = """
tables = {
    "copies": tl.delta_batches(settings, spark, path=f"{folder}/copies"),
    "newest": tl.delta_batches(settings, spark, path=f"{folder}/newest", mode="merge", keys=["_kafka"]),
}
query = tl.start_sinks(
    tl.read_values(spark, settings), settings, tables, checkpoint_path=f"{folder}/sinks"
)
tl.await_caught_up(query, settings.pipeline.trigger)
"""
    apply = """
query = tl.apply_changes(
    tl.read_values(spark, settings),
    settings,
    path=versions,
    keys=["ip"],
    sequence_by="hittime",
    except_column_list=["hittime"],
    stored_as_scd_type=2,
    checkpoint_path=f"{folder}/checkpoints/versions",
)
tl.await_caught_up(query, settings.pipeline.trigger)
"""
    given = {"folder": str(hits.folder), "versions": f"{catalog_schema}.versions"}
    connect_server.run(INGEST + AUDIT + copy + apply, settings=hits.settings(), **given)
    assert hits.quarantined().total() == 1
    for name in ("table", "copies", "newest"):
        rows = delta.read(spark, f"{hits.folder}/{name}")
        assert (rows.count(), rows.select("_kafka").distinct().count()) == (20, 20)
    assert delta.read(spark, f"{catalog_schema}.versions").count() == 20


@pytest.mark.thorough("changes on the same server")
@pytest.mark.slow("two clients, and a Python worker for each query")
def test_an_ingest_of_changes_on_spark_connect_applies_each_once_also_after_a_crash(
    hits, connect_server, spark
):
    changes = {"keys": ["ip"], "order": ["hittime"], "deletes": "none"}
    settings, table = hits.settings(apply="upsert", changes=changes), f"{hits.folder}/table"
    hits.publish(20)
    hits.send(b"no JSON")
    connect_server.run(INGEST + AUDIT, settings=settings)
    crash_after_batch(hits.folder / "checkpoint", 0)
    hits.publish(20, seed=2)
    connect_server.run(INGEST + AUDIT + "tl.replay_quarantine(spark, settings)\n" + AUDIT, settings=settings)
    newest: dict[str, float] = {}
    for value in hits.values():
        at = datetime.fromisoformat(value["hittime"].replace("Z", "+00:00")).timestamp()
        newest[value["ip"]] = max(newest.get(value["ip"], 0), at)
    rows = delta.read(spark, table).selectExpr("ip", "unix_micros(hittime) / 1000000 AS at")
    assert sorted(tuple(row) for row in rows.collect()) == sorted(newest.items())
    assert reasons_of(spark, table) == {"undecodable": 1}
    counts = [commit.metadata["changes"] for commit in table_commits.read(spark, table).valid[::-1]]
    assert [count["merged"] + count["superseded"] for count in counts] == [20, 20]
    assert [count["quarantined"] for count in counts] == [1, 0]


@pytest.mark.thorough("a repeated batch of an ingest on the same server is in make test")
@pytest.mark.slow("two clients, and two tables of changes")
def test_a_repeated_append_and_a_repeated_merge_change_nothing_on_spark_connect(
    tmp_path, connect_server, spark
):
    """The configuration of the session does not name the writer of a MERGE there."""
    repeated = """
from topiclake.delta import merge, table
rows = spark.createDataFrame([(1, "a"), (None, "b")], "id INT, name STRING")
for attempt in ("first", "second"):
    table.append_once(rows, f"{folder}/appended", writer="w", batch_id=7, commit={"attempt": attempt})
    merge.merge_once(rows, f"{folder}/merged", ["id"], writer="w", batch_id=7)
    print(table.is_committed(spark, f"{folder}/appended", attempt))

from topiclake.changes import tables
from topiclake.changes.batch import ChangeTarget
from topiclake.changes.rows import ChangeRows
from topiclake.changes.rules import ChangeRules
changes = spark.createDataFrame([(1, "a", 1), (1, "b", 2), (None, "c", 3)], "id INT, name STRING, at INT")
for scd_type in (1, 2):
    rules = ChangeRules(("id",), sequence_by=("at",), stored_as_scd_type=scd_type)
    columns = ChangeRows.of(changes, rules)
    target = ChangeTarget(f"{folder}/type{scd_type}", f"{folder}/rejected{scd_type}", rules)
    tables.ensure(spark, target.table, columns.table_schema(changes), columns)
    for attempt in range(2):
        target.write(changes, writer="w", batch_id=0)
"""
    done = connect_server.run(repeated, folder=str(tmp_path))
    assert done.stdout.split() == ["True", "False"]
    for name in ("appended", "merged"):
        assert sorted(row["name"] for row in delta.read(spark, f"{tmp_path}/{name}").collect()) == ["a", "b"]
    for scd_type, expected in ((1, ["b"]), (2, ["a", "b"])):
        rows = delta.read(spark, f"{tmp_path}/type{scd_type}").orderBy("at").collect()
        assert [row["name"] for row in rows] == expected
        assert delta.read(spark, f"{tmp_path}/rejected{scd_type}").count() == 1
    commit = delta.commit_of(spark, f"{tmp_path}/appended", writer="w", batch_id=7)
    assert commit == {"writer": "w", "batch_id": 7, "attempt": "first", "rows": 2}


@pytest.fixture
def without_limits(spark):
    """The session's JVM answers that it has none of Avro's limits; in fact it keeps those that it read."""
    system = spark._jvm.java.lang.System
    for name in AVRO_LIMITS:
        system.clearProperty(name)
    yield
    for name, value in AVRO_LIMITS.items():
        system.setProperty(name, str(value))


@pytest.mark.thorough("the same records as in test_bombs, which runs always")
@pytest.mark.slow("a client in another process, which checks each record")
def test_without_avros_limits_python_checks_each_record_first(numbers, connect_server, spark, without_limits):
    ensure_topic(numbers.settings().kafka, numbers.topic_name("a"), 2)
    # The unit tests of the check have all bombs.
    expected, names = set(), ("string_2_gib", "free_items", "decimal_of_1000_bytes")
    for name in names:
        kind, good, bomb = BOMBS[name]
        text = schema(name, kind)
        schema_id = numbers.registry.register(f"{numbers.topic_name('a')}-value", text)
        neighbour = frame(schema_id, good + z(len(name)) + name.encode())
        numbers.send("a", neighbour, frame(schema_id, bomb + b"\0"), neighbour + b"\0")
        # fastavro could be kept busy by such an array, so none of its records is decoded.
        expected |= set() if has_free_items(json.loads(text)) else {name}
    settings = numbers.settings()
    done = connect_server.run(INGEST + AUDIT, settings=settings)
    assert "Python checks each record" in done.stderr
    rows = delta.read(spark, f"{numbers.folder}/table")
    assert {row["of"] for row in rows.select("of").collect()} == expected
    assert rows.count() == len(expected)
    assert 0 < len(expected) < len(names)
    assert reasons_of(spark, f"{numbers.folder}/table") == {"undecodable": 3 * len(names) - len(expected)}
    assert tl.audit_ingest(spark, settings).ok
