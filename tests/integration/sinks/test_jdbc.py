"""Counts in MariaDB and PostgreSQL, real servers: each micro-batch exactly once."""

import json
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from decimal import Decimal
from uuid import uuid4

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

import topiclake as tl
from tests.programs import jdbc_run
from tests.services import databases
from tests.support.local_rows import local_rows
from tests.support.waiting import wait_until
from topiclake.errors import ConfigError, DatabaseError, IngestError
from topiclake.sinks.jdbc import connection as jdbc_connection
from topiclake.sinks.jdbc import rows as jdbc_rows
from topiclake.sinks.jdbc import upsert as jdbc_upsert
from topiclake.streaming.sink import SinkBatch
from topiclake_examples.isp.hits import hits_per_zip

HITS = "zipcode STRING, hittime TIMESTAMP"
MARIADB = pytest.param("mariadb", marks=pytest.mark.root("Debian's mariadb-server-core"))
POSTGRESQL_TLS = pytest.param("postgresql_tls", marks=pytest.mark.root("Debian's postgresql"))


@pytest.fixture(scope="module", params=[MARIADB, "postgresql"])
def server(request):
    with databases.database(request.param) as server:
        yield server


@pytest.fixture
def sink(server, spark, tmp_path):
    yield Sink(server, spark, tmp_path)
    for query in spark.streams.active:
        query.stop()
    assert sum(pool.users for pool in jdbc_connection._pools.values()) == 0


class Sink:
    """A table of its own, and what a test does with it."""

    def __init__(self, server, spark, folder):
        self.server, self.spark, self.folder = server, spark, folder
        self.table = f"t_{uuid4().hex[:8]}"
        self.settings = jdbc_run.settings_for(folder, server)

    def batch(self, number, query="one"):
        """Return a batch of a query."""
        return SinkBatch(f"{self.table}-{query}", number, f"{self.folder}/checkpoint")

    def with_(self, **database):
        return jdbc_run.settings_for(self.folder, self.server, **database)

    def frame(self, rows, schema):
        return local_rows(self.spark, rows, schema).coalesce(1)

    def batches(self, rows, keys=("k",), settings=None, table=None, **given):
        return jdbc_upsert.upsert_batches(
            rows,
            settings or self.settings,
            table=table or self.table,
            keys=keys,
            **given,
        )

    def write(self, rows, batch_id=0, query="one", **given):
        self.batches(rows, **given).write(rows, self.batch(batch_id, query))

    def rows(self, columns="*", table=None, order="1"):
        quoted = self.server.quoted(table or self.table)
        return self.server.query(f"SELECT {columns} FROM {quoted} ORDER BY {order}")

    def refused(self, table=None):
        found = self.rows("reason, row_json", f"{table or self.table}_quarantine", "batch_id, number")
        return [(reason, json.loads(row)) for reason, row in found]

    def hits(self, *files):
        """Write files of zip codes; each becomes a micro-batch."""
        folder = self.folder / "hits"
        folder.mkdir(exist_ok=True)
        for zips in files:
            lines = (json.dumps({"zipcode": one, "hittime": "2026-01-02T03:04:05Z"}) for one in zips)
            number = len(list(folder.iterdir()))
            file = folder / f"{number:03}.json"
            file.write_text("\n".join(lines))
            # Spark takes the oldest first.
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def run(self, output_mode="update", settings=None, rows=None, wait=True):
        """Count what is there by zip code, and end."""
        hits = self.spark.readStream.schema(HITS).option("maxFilesPerTrigger", 1)
        query = tl.start_upsert(
            hits_per_zip(hits.json(str(self.folder / "hits"))) if rows is None else rows,
            settings or self.settings,
            table=self.table,
            keys=["zip"],
            checkpoint_path=f"{self.folder}/stream",
            output_mode=output_mode,
        )
        if wait:
            tl.await_caught_up(query, "availableNow")
        return query

    def counted(self):
        """Return what a batch counts over the same files."""
        hits = self.spark.read.schema(HITS).json(str(self.folder / "hits"))
        return sorted(tuple(row) for row in hits_per_zip(hits).where("zip IS NOT NULL").collect())


def test_a_stream_of_counts_equals_a_batch_over_the_same_hits(sink):
    sink.hits(["94103", "10001-1234", "94103"], ["94103", "none", "00501"], ["10001"])
    sink.run()
    first = sink.rows()
    assert first == sink.counted() == [("00501", 1), ("10001", 2), ("94103", 3)]
    # A row without a key is in no table, and not lost: in each batch of a count that holds it.
    assert {reason for reason, _ in sink.refused()} == {"key zip is null"}
    assert sink.refused()[-1][1] == {"zip": None, "count": 1}
    sink.run()
    assert sink.rows() == first, "a second run has nothing to do"
    sink.hits(["00501", "60601"])
    sink.run()
    assert sink.rows() == sink.counted()
    assert ("00501", 2) in sink.rows()


@pytest.mark.parametrize("output_mode", ["update", "complete"])
def test_a_batch_that_spark_did_not_hear_of_is_left_out_and_its_state_kept(sink, monkeypatch, output_mode):
    """The driver ends between the commit and Spark's own."""
    write_batch = jdbc_upsert.UpsertBatches.write

    def dies(*given):
        write_batch(*given)
        raise OSError("killed")

    sink.hits(["94103", "none"], ["94103"])
    monkeypatch.setattr(jdbc_upsert.UpsertBatches, "write", dies)
    with pytest.raises(IngestError, match="killed"):
        sink.run(output_mode)
    monkeypatch.setattr(jdbc_upsert.UpsertBatches, "write", write_batch)
    assert sink.rows() == [("94103", 1)]
    once = len(sink.refused())
    sink.run(output_mode)
    assert sink.rows() == sink.counted() == [("94103", 2)]
    assert len(sink.refused()) == once + (output_mode == "complete")


def test_complete_mode_leaves_no_row_of_an_earlier_batch(sink):
    sink.write(sink.frame([("a", 1), ("b", 1)], "k STRING, n INT"), 0, replaces=True)
    sink.write(sink.frame([("b", 2), ("c", 2)], "k STRING, n INT"), 1, replaces=True)
    assert sink.rows() == [("b", 2), ("c", 2)]
    sink.write(sink.frame([], "k STRING, n INT"), 2, replaces=True)
    assert sink.rows() == []


def test_a_batch_that_comes_again_is_left_out(sink):
    rows = sink.frame([("a", 1)], "k STRING, n INT")
    sink.write(rows, 7)
    sink.write(sink.frame([("a", 99), ("x" * 300, 1)], "k STRING, n INT"), 7)
    sink.write(sink.frame([("a", 99)], "k STRING, n INT"), 6)
    assert (sink.rows(), sink.refused()) == ([("a", 1)], [])
    sink.write(sink.frame([("a", 2)], "k STRING, n INT"), 8)
    sink.write(sink.frame([("b", 3)], "k STRING, n INT"), 0, query="another")
    assert sink.rows() == [("a", 2), ("b", 3)], "another checkpoint is another writer"
    written = sink.server.query(f"SELECT batch_id FROM topiclake_batches WHERE writer LIKE '%/{sink.table}'")
    assert sorted(written) == [(0,), (8,)]


def test_two_drivers_with_one_checkpoint_write_a_batch_once(sink, monkeypatch):
    """Both are within the batch at once: the second waits for the first, and finds it done."""
    nothing = sink.frame([], "k STRING, n INT")
    target = sink.batches(nothing)
    # The row of a writer that is new is locked already by who inserts it.
    target.write(nothing, sink.batch(0))
    frames = [sink.frame([("a", number), ("x" * 300, number)], "k STRING, n INT") for number in (1, 2)]
    gate, write, entered = threading.Barrier(2), jdbc_upsert._write_once, []

    def together(*given):
        gate.wait(120)
        return write(*given)

    def counted(self, rows):
        entered.append(1)
        time.sleep(0.5)
        original(self, rows)

    original = jdbc_rows.UpsertTransaction.write
    monkeypatch.setattr(jdbc_upsert, "_write_once", together)
    monkeypatch.setattr(jdbc_rows.UpsertTransaction, "write", counted)
    drivers = [threading.Thread(target=target.write, args=(frame, sink.batch(1))) for frame in frames]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(240)
    assert len(entered) == len(sink.rows()) == len(sink.refused()) == 1


def test_what_the_database_refuses_is_kept_with_its_reason_and_the_rest_lands(sink, monkeypatch):
    monkeypatch.setattr(jdbc_rows, "CHUNK_ROWS", 64)
    small = "VARCHAR(5)" if sink.server.kind == "postgresql" else "VARCHAR(5) CHARACTER SET latin1"
    check = "CHECK (n <> 13)"
    sink.server.query(
        f"CREATE TABLE {sink.table} (k BIGINT PRIMARY KEY, v {small} NOT NULL, n SMALLINT {check})"
    )
    bad = {17: ("123456", 1), 18: (None, 1), 90: ("ok", 40_000), 91: ("ok", 13), 92: ("日本", 1)}
    rows = [(number, *bad.get(number, ("ok", 1))) for number in range(200)]
    sink.write(sink.frame(rows, "k BIGINT, v STRING, n INT"))
    wrong = {17, 18, 90, 91} | ({92} if sink.server.kind == "mariadb" else set())
    assert {key for (key,) in sink.rows("k")} == set(range(200)) - wrong
    reasons = {row["k"]: reason for reason, row in sink.refused()}
    assert set(reasons) == wrong
    assert "too long" in reasons[17]
    assert "null" in reasons[18]
    assert "out of range" in reasons[90].lower()
    assert "constraint" in reasons[91].lower()
    writers = sink.server.query(f"SELECT DISTINCT writer, batch_id FROM {sink.table}_quarantine")
    assert len(writers) == 1
    assert writers[0][0].endswith(f"/{sink.table}")


def test_values_that_cannot_even_be_sent_are_kept_too(sink):
    rows = sink.frame(
        [("nul", "a\0b", 1.0), ("nan", "ok", float("nan")), ("x" * 256, "ok", 1.0), ("good", "ok", 1.0)],
        "k STRING, v STRING, d DOUBLE",
    )
    late = F.timestamp_micros(F.when(F.col("k") == "good", 0).otherwise(0).cast("long"))
    times = sink.frame([("late", 300_000_000_000_000_000)], "k STRING, t BIGINT").select(
        "k", F.lit("ok").alias("v"), F.lit(1.0).alias("d"), F.timestamp_micros("t").alias("t")
    )
    sink.write(rows.withColumn("t", late).unionByName(times))
    refused = {row["k"]: reason for reason, row in sink.refused()}
    is_postgresql = sink.server.kind == "postgresql"
    assert set(refused) == {"x" * 256, "late"} | ({"nul"} if is_postgresql else {"nan"})
    assert "outside of the years 1 to 9999" in refused["late"]
    assert sorted(sink.rows("k")) == sorted([("good",), ("nan",) if is_postgresql else ("nul",)])


def test_a_value_larger_than_a_statement_is_kept_in_part(sink):
    if sink.server.kind == "mariadb":
        rows = sink.frame([("big",), ("good",)], "k STRING").withColumn(
            "v", F.when(F.col("k") == "big", F.expr("repeat('x', 10000000)")).otherwise("ok")
        )
        sink.write(rows)
        assert sink.rows() == [("good", "ok")]
        ((reason, row),) = sink.refused()
        assert reason.startswith("it has 10000003 bytes")
        assert row["v"] == "x" * 1000 + "… (cut; there were 10000000)"


def test_a_deadlock_is_tried_again(sink, caplog):
    rows = "k STRING, n INT"
    sink.write(sink.frame([("a", 1), ("b", 1), ("c", 1)], rows), 0)
    one_by_one = pytest.MonkeyPatch()
    one_by_one.setattr(jdbc_rows, "CHUNK_ROWS", 1)
    batch = sink.frame([("a", 2), ("b", 2), ("c", 2)], rows).repartition(1)
    with ThreadPoolExecutor() as pool:
        # The sink has `a` and waits for `b`, which it gets when somebody waits for `a`, and has `c`.
        other, gate = _transaction(sink, "c"), _transaction(sink, "b")
        written = pool.submit(sink.write, batch, 1)
        _await_lock_waits(sink.server, 1)
        taken = pool.submit(other.cursor().execute, f"UPDATE {sink.table} SET n = 50 WHERE k = 'a'")
        _await_lock_waits(sink.server, 2)
        gate.cursor().execute("COMMIT")
        taken.result(240)
        other.cursor().execute("COMMIT")
        written.result(240)
    for one in (other, gate):
        one.close()
    one_by_one.undo()
    assert sink.rows() == [("a", 2), ("b", 2), ("c", 2)]
    assert "deadlock" in caplog.text.lower()


def _transaction(sink, key):
    """Begin one that has a row's lock, and is never the victim of a deadlock."""
    connection = sink.server.connect()
    if sink.server.kind == "postgresql":
        # There it is who looks first; the sink does after 100 ms.
        connection.cursor().execute("SET deadlock_timeout = '10min'")
    connection.cursor().execute("BEGIN")
    connection.cursor().execute(f"UPDATE {sink.table} SET n = 50 WHERE k = '{key}'")
    if sink.server.kind == "mariadb":
        # There it is who has changed less.
        connection.cursor().execute("CREATE TEMPORARY TABLE IF NOT EXISTS w (n INT) ENGINE=InnoDB")
        connection.cursor().execute("INSERT INTO w SELECT seq FROM seq_1_to_1000")
    return connection


def _await_lock_waits(server, number):
    """Wait until so many transactions wait for others' locks."""
    sql = {
        "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    }

    def waits():
        if server.kind == "mariadb":
            # MariaDB refreshes the table after a tenth of a second without a query of it.
            time.sleep(0.3)
        return server.query(sql[server.kind]) == [(number,)]

    wait_until(waits)


def test_a_server_that_restarts_in_a_batch_is_waited_for(sink, monkeypatch, caplog):
    sink.hits(["94103", "10001"], ["94103"], ["94103", "00501"])
    write, stops = jdbc_rows.UpsertTransaction.write, []

    def interrupted(self, rows):
        write(self, rows)
        if not stops:
            stops.append(self.batch_id)
            sink.server.stop()
            threading.Timer(0.5, sink.server.start).start()

    monkeypatch.setattr(jdbc_rows.UpsertTransaction, "write", interrupted)
    sink.run()
    assert stops
    assert sink.rows() == sink.counted()
    assert "next try in" in caplog.text


def test_a_database_that_stays_away_ends_the_stream_and_loses_nothing(sink):
    sink.hits(["94103"])
    settings = sink.with_(retry_seconds=1)
    sink.run(settings=settings)
    sink.hits(["94103", "10001"])
    target = sink.batches(sink.frame([], "k STRING, n INT"), settings=settings, table="other")
    sink.server.stop()
    try:
        with pytest.raises(DatabaseError, match=r"gave up after 1 s") as raised:
            target.write(sink.frame([("a", 1)], "k STRING, n INT"), sink.batch(0))
        text = str(raised.value)
        assert f"pipeline counts, table other, {sink.server.kind} database stats on 127.0.0.1" in text
        with pytest.raises(DatabaseError):
            sink.run(settings=settings)
    finally:
        sink.server.start()
    sink.run()
    assert sink.rows() == sink.counted() == [("10001", 1), ("94103", 2)]


@pytest.mark.parametrize(
    ("database", "remedy"),
    [
        ({"password": "{{secrets/db/wrong}}"}, "correct the secrets of database.username"),
        ({"url": "missing"}, "correct database.url"),
        ({"username": "{{secrets/db/reader}}"}, "GRANT SELECT"),
    ],
)
def test_what_no_second_try_would_mend_is_said_at_once(sink, database, remedy):
    _require_failure_at_once(sink, database, remedy)


def _require_failure_at_once(sink, database, remedy):
    url = sink.server.url
    urls = {"missing": f"{url}_missing", "localhost": url.replace("127.0.0.1", "localhost")}
    if database.get("url"):
        database = {"url": urls[database["url"]]}
    rows = sink.frame([("a", 1)], "k STRING, n INT")
    started = time.monotonic()
    with pytest.raises(DatabaseError) as raised:
        sink.write(rows, settings=sink.with_(**database))
    assert time.monotonic() - started < 150, "not tried until retry_seconds"
    text = f"{raised.value!r} {raised.value}"
    assert remedy in text
    assert databases.PASSWORD not in text
    assert databases.USER not in text
    assert "\n" not in str(raised.value)


def test_rights_that_are_taken_away_are_said_at_once(sink):
    """At the start the tables are there; it is the first batch that may not be written."""
    rows = sink.frame([("a", 1)], "k STRING, n INT")
    sink.write(rows, 0)
    reader = sink.with_(username="{{secrets/db/reader}}")
    with pytest.raises(DatabaseError, match="GRANT SELECT, INSERT"):
        sink.write(rows, 1, settings=reader)
    assert sink.rows() == [("a", 1)]


HOSTILE = [
    "select",
    'a"b`c',
    "x'; DROP TABLE topiclake_batches; --",
    "100%s %(k)s %%",
    "ключ 日本 é",
    "a.b, c) VALUES (1) --",
    ":name {0} \\",
]


def test_names_and_values_are_names_and_values_whatever_they_hold(sink):
    """Each name is a table's, a key's and a column's; each value of a key is its own."""
    columns = [f"{name}{at}" for at, name in enumerate(HOSTILE)]
    values = [*HOSTILE, "a", "A", "a ", "ä", "😀", "\\'; DROP TABLE x", ""]
    rows = [[value] * len(columns) for value in values] + [["x" * 300] * len(columns)]
    for at in range(2):
        table = f"{uuid4().hex[:6]} {HOSTILE[at + 1]}"
        keys = [columns[at]]
        for batch_id in range(2):
            changed = [
                [one if name in keys else f"{batch_id}{one}" for name, one in zip(columns, row, strict=True)]
                for row in rows
            ]
            schema = T.StructType([T.StructField(name, T.StringType()) for name in columns])
            sink.write(sink.frame(changed, schema), batch_id, keys=keys, table=table)
        assert sorted(sink.rows(table=table)) == sorted(map(tuple, changed[:-1]))
        assert [row for _, row in sink.refused(table)][-1] == dict(zip(columns, changed[-1], strict=True))
    for name in HOSTILE:
        sink.batches(sink.frame([], T.StructType().add(name, "string")), keys=[name], table=name[:40])
        assert sink.rows(table=name[:40]) == []


def test_each_type_comes_back_as_it_was(sink):
    schema = (
        "k DATE, b BOOLEAN, y TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(38,18), "
        "v STRING, x BINARY, a DATE, t TIMESTAMP, z TIMESTAMP_NTZ"
    )
    moment = datetime(2026, 3, 8, 2, 30, 0, 120000)
    number = Decimal("12345678901234567890.123456789012345678")
    values = (
        *(date(1, 1, 1), True, -128, 32767, -(2**31), 2**63 - 1, 1.5, 0.1, number),
        *("é\n'\"\\", b"\x00\xff'", date(9999, 12, 31), moment.replace(tzinfo=timezone.utc), moment),
    )
    nulls = (date(1, 1, 2), *([None] * 13))
    sink.write(sink.frame([values, nulls], schema))
    expected = list(values)
    if sink.server.kind == "mariadb":
        expected[1], expected[12] = 1, moment
    first, second = sink.rows(order="1")
    assert [bytes(one) if isinstance(one, memoryview) else one for one in first] == expected
    assert second == nulls
    assert sink.refused() == []


def test_times_are_utc_whatever_the_zones_are(sink, monkeypatch):
    """Those of the servers are India's; the hour does not exist in New York."""
    moment = datetime(2026, 3, 8, 2, 30, tzinfo=timezone.utc)
    before = sink.spark.conf.get("spark.sql.session.timeZone")
    sink.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        columns = "timestamp_micros(n) k, TIMESTAMP_NTZ'2026-03-08 02:30:00' z"
        rows = (
            sink.spark.range(1)
            .selectExpr(f"{int(moment.timestamp())}L * 1000000L n")
            .selectExpr(*columns.split(", "))
        )
        sink.write(rows)
    finally:
        sink.spark.conf.set("spark.sql.session.timeZone", before)
        monkeypatch.undo()
        time.tzset()
    naive = moment.replace(tzinfo=None)
    assert sink.rows() == [(moment if sink.server.kind == "postgresql" else naive, naive)]
    own = {"mariadb": "k TIMESTAMP PRIMARY KEY", "postgresql": "k TIMESTAMP PRIMARY KEY"}[sink.server.kind]
    sink.server.query(f"CREATE TABLE own_{sink.table} ({own})")
    sink.write(rows.select("k"), table=f"own_{sink.table}")
    zone = "SET time_zone = '+00:00'" if sink.server.kind == "mariadb" else "SET TIME ZONE 'UTC'"
    connection = sink.server.connect()
    cursor = connection.cursor()
    cursor.execute(zone)
    cursor.execute(f"SELECT k FROM own_{sink.table}")
    assert cursor.fetchone() == (naive,)
    connection.close()


OWN = "k INT PRIMARY KEY, n INT"
ENGINE = "has engine MyISAM"


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("k INT PRIMARY KEY", "has no column n"),
        ("k INT, n INT", "no primary key or unique index over k alone"),
        ("k INT, n INT, PRIMARY KEY (k, n)", "no primary key or unique index over k alone"),
        (f"{OWN}, m INT NOT NULL", "needs a value for m"),
        (f"{OWN} UNIQUE", "another unique index, over n"),
        (f"{OWN}) ENGINE=MyISAM -- ", ENGINE),
        (f"{OWN}, m INT NOT NULL DEFAULT 5", None),
        ("id SERIAL PRIMARY KEY, k INT NOT NULL UNIQUE, n INT", None),
    ],
)
def test_a_table_of_ones_own_is_checked_at_the_start(sink, columns, wrong):
    if sink.server.kind == "postgresql" and wrong in ("another unique index, over n", ENGINE):
        return
    sink.server.query(f"CREATE TABLE {sink.table} ({columns}\n)" if wrong != ENGINE else
                      f"CREATE TABLE {sink.table} ({OWN}) ENGINE=MyISAM")  # fmt: skip
    rows = sink.frame([(1, 2)], "k INT, n INT")
    if wrong is None:
        sink.write(rows, 0)
        sink.write(sink.frame([(1, 3)], "k INT, n INT"), 1)
        assert sink.rows("k, n") == [(1, 3)]
        return
    with pytest.raises(ConfigError, match=wrong) as raised:
        sink.batches(rows)
    assert f"table {sink.table} " in str(raised.value)


def test_rows_that_are_no_rows_of_a_table_are_named_before_anything_is_written(sink):
    rows = sink.frame([("a", 1)], "k STRING, n INT")

    def refused(rows=rows, **given):
        with pytest.raises(ConfigError) as raised:
            sink.batches(rows, **given)
        return str(raised.value)

    assert "keys names x, which the rows don't have; try: use k, n" in refused(keys=["x"])
    assert "keys is empty" in refused(keys=[])
    assert "is no name for a database" in refused(table="t" * 60)
    assert "is no name for a database" in refused(table="a\0b")
    assert "column s is struct<a:int>" in refused(rows.withColumn("s", F.expr("named_struct('a', 1)")))
    assert "key d is double" in refused(rows.withColumn("d", F.lit(1.0)), keys=["d"])
    assert "the rows have k twice" in refused(rows.select("k", F.lit(1).alias("k")))
    assert sink.server.query(
        f"SELECT count(*) FROM information_schema.tables WHERE table_name = '{sink.table}'"
    ) == [(0,)]
    with pytest.raises(ConfigError, match="allowed: append, update, complete"):
        sink.run(rows=rows, output_mode="upsert")
    none = sink.settings.model_copy(update={"database": None})
    assert "no section database" in refused(settings=none)


def test_rows_with_the_same_keys_are_refused_as_a_whole(sink):
    rows = sink.frame([("a", 1), ("b", 1), ("a", 2)], "k STRING, n INT").repartition(3)
    with pytest.raises(ConfigError, match="two rows of batch 0 have the same k"):
        sink.write(rows)
    assert sink.rows() == []


def test_what_writes_can_be_pickled_and_shows_no_login(sink):
    rows = sink.frame([("a", 1)], "k STRING, n INT")
    again = pickle.loads(pickle.dumps(sink.batches(rows)))
    assert databases.PASSWORD not in repr(again)
    again.write(rows, sink.batch(0))
    assert sink.rows() == [("a", 1)]


def test_connections_are_shared_and_closed_when_nobody_uses_them(sink, monkeypatch):
    monkeypatch.setattr(jdbc_connection, "IDLE_SECONDS", 0.2)
    settings = sink.with_(pool_size=2)
    first, second = (jdbc_connection.Database.from_settings(settings) for _ in range(2))
    with jdbc_connection.transaction(first) as one, jdbc_connection.transaction(second) as two:
        assert one.engine is two.engine
        assert one.engine.pool.checkedout() == 2
    with jdbc_connection.transaction(first) as one:
        assert one.engine.pool.checkedin() == 1
    wait_until(lambda: first not in jdbc_connection._pools)
    assert one.engine.pool.checkedin() == 0


@pytest.mark.thorough("a further kill")
def test_a_driver_that_is_killed_goes_on_where_it_was(server, spark, tmp_path):
    """A cold JVM takes long: one step on each; bench/jdbc_kills.py kills at any moment, and more often."""
    step = dict(zip(("mariadb", "postgresql"), jdbc_run.STEPS, strict=True))[server.kind]
    server.query(f"DROP TABLE IF EXISTS {jdbc_run.TABLE}")
    server.query(f"DROP TABLE IF EXISTS {jdbc_run.TABLE}_quarantine")
    jdbc_run.settings_for(tmp_path, server)
    jdbc_run.write_hits(tmp_path, 4, seed=1)
    jdbc_run.Driver(tmp_path).stop_at(step)
    # The test's own session is another driver, and its JVM is warm.
    jdbc_run.start(spark, tmp_path)
    assert jdbc_run.found(server) == jdbc_run.expected(tmp_path)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_server_without_tls_is_refused(sink):
    with pytest.raises(DatabaseError, match="server does not support SSL"):
        sink.write(sink.frame([("a", 1)], "k STRING, n INT"), settings=sink.with_(tls=True))


# The tests with TLS are last, so that each server starts once.


@pytest.mark.parametrize("server", [MARIADB, POSTGRESQL_TLS], indirect=True)
def test_rows_are_sent_with_tls(sink):
    sink.write(sink.frame([("a", 1)], "k STRING, n INT"))
    assert sink.rows() == [("a", 1)]
    sql = {
        "mariadb": "SELECT variable_value <> '' FROM information_schema.session_status "
        "WHERE variable_name = 'Ssl_cipher'",
        "postgresql": "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    }
    database = jdbc_connection.Database.from_settings(sink.settings)
    with jdbc_connection.transaction(database) as connection:
        assert connection.exec_driver_sql(sql[sink.server.kind]).scalar_one()


@pytest.mark.parametrize("server", [MARIADB, POSTGRESQL_TLS], indirect=True)
@pytest.mark.parametrize("database", [{"ca_file": None}, {"url": "localhost"}])
def test_a_certificate_that_does_not_fit_is_reported_at_once(sink, database):
    _require_failure_at_once(sink, database, "database.ca_file")
