"""Topics into tables by name, in Spark's own catalog: ingest, restart, replay, audit, several topics."""

import json
from uuid import uuid4

import pytest

import topiclake as tl
from tests.support.environment import succeeded
from tests.support.numbers_topic import Numbers, right
from tests.support.orders_topic import UserProject, send_by_confluent_kafka
from topiclake.delta import table as delta
from topiclake.errors import IngestError, StorageError


class Named(Numbers):
    """Topics of numbers whose tables are in a schema of the catalog."""

    def __init__(self, spark, folder, schema):
        self.schema = schema
        super().__init__(spark, folder)
        self.several = {
            "topic": f"{self.topic_name('a')},{self.topic_name('b')}",
            "table": f"{schema}.{{topic}}",
        }

    def topic_name(self, name):
        # Spark's own catalog allows no hyphen in a table's name.
        return f"{self.name.replace('-', '_')}_{name}"

    def settings(self, **given):
        named = {} if "table_path" in given else {"table": f"{self.schema}.gps"}
        return super().settings(**named | given)

    def ingest(self, **given):
        settings = self.settings(**given)
        return settings, self.ingested(settings)

    def numbers(self, table="gps"):
        return sorted(row["n"] for row in delta.read(self.spark, f"{self.schema}.{table}").collect())

    def tables(self):
        listed = self.spark.sql(f"SHOW TABLES IN {self.schema}").where("NOT isTemporary").collect()
        return {row["tableName"] for row in listed}


@pytest.fixture
def named(connected, tmp_path, catalog_schema):
    made = Named(connected, tmp_path, catalog_schema)
    made.topic("a")
    return made


@pytest.fixture
def schema_id(named):
    return named.register("a")


def test_a_topic_becomes_a_managed_table_with_its_quarantine_and_is_audited(named, schema_id):
    named.send("a", *(right(schema_id, n) for n in range(4)), b"no Avro")
    settings, query = named.ingest()
    assert named.tables() == {"gps", "gps_quarantine"}
    assert named.numbers() == [0, 1, 2, 3]
    summary = tl.summarize(named.spark, settings, query)
    assert (summary.table.path, summary.quarantine.path) == (
        f"{named.schema}.gps",
        f"{named.schema}.gps_quarantine",
    )
    assert (summary.rows_written, sum(summary.quarantined.values())) == (4, 1)
    assert tl.audit_ingest(named.spark, settings).ok


@pytest.mark.thorough("the same functions and a replay are tested with paths")
@pytest.mark.slow("two ingests, a plan, a replay and an audit")
def test_each_function_reads_a_managed_table_by_its_name_and_a_replay_writes_it(named, schema_id):
    named.send("a", right(schema_id, 1), b"no Avro")
    settings, _ = named.ingest()
    table = f"{named.schema}.gps"
    assert tl.create_view(named.spark, settings).count() == 1
    assert tl.table_history(named.spark, settings).where("operation = 'WRITE'").count() == 1
    assert tl.quarantine_reasons(named.spark, settings).count() == 1
    counted = named.spark.sql(f"SELECT count(*) AS rows FROM {tl.table_identifier(settings)}").first()
    assert counted["rows"] == 1
    plan = tl.plan_ingest(named.spark, settings)
    assert (plan.tables[0].path, plan.tables[0].exists, plan.has_changes) == (table, True, False)
    named.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (n < 5)")
    named.send("a", right(schema_id, 2), right(schema_id, 9))
    named.ingest()
    assert named.numbers() == [1, 2]
    waiting = tl.quarantine_rows(named.spark, settings).collect()
    assert sorted(row["reason"] for row in waiting) == ["bad_magic", "refused_by_table"]
    named.spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT small")
    assert tl.replay_quarantine(named.spark, settings).replayed == 1
    assert named.numbers() == [1, 2, 9]
    assert "gps_quarantine_replays" in named.tables()
    assert tl.audit_ingest(named.spark, settings).ok


@pytest.mark.thorough("several topics are tested with paths")
@pytest.mark.slow("an ingest of two topics, and an audit")
def test_each_of_several_topics_has_a_table_with_its_name(named, schema_id):
    named.topic("b")
    of_b = named.register("b")
    named.send("a", right(schema_id, 1), b"no Avro")
    named.send("b", right(of_b, 2), right(of_b, 3))
    settings, query = named.ingest(**named.several)
    a, b = named.topic_name("a"), named.topic_name("b")
    assert named.tables() == {a, f"{a}_quarantine", b}
    assert (named.numbers(a), named.numbers(b)) == ([1], [2, 3])
    assert tl.audit_ingest(named.spark, settings).ok
    listed = {row["topic"]: row["table"] for row in tl.create_view(named.spark, settings).collect()}
    assert listed == {a: f"{named.schema}.{a}", b: f"{named.schema}.{b}"}
    summary = tl.summarize(named.spark, settings, query)
    assert (summary.rows_written, summary.quarantined) == (3, {"bad_magic": 1})
    assert (summary.table.rows, summary.quarantine.rows) == (3, 1)


@pytest.mark.thorough("an external table is tested in tests/spark/delta")
def test_a_table_that_had_a_path_continues_by_its_name(named, schema_id):
    """The user registers it as an external table; the checkpoint stays."""
    named.send("a", right(schema_id, 1))
    folder = f"file:{named.folder}/table"
    named.ingest(table_path=folder)
    named.spark.sql(f"CREATE TABLE {named.schema}.gps USING delta LOCATION '{folder}'")
    named.send("a", right(schema_id, 2))
    named.ingest()
    assert named.numbers() == [1, 2]
    assert delta.read(named.spark, folder).count() == 2


def test_a_table_that_was_dropped_is_missed_and_nothing_is_written(named, schema_id):
    named.send("a", right(schema_id, 1))
    named.ingest()
    named.spark.sql(f"DROP TABLE {named.schema}.gps")
    with pytest.raises(IngestError) as raised:
        named.ingest()
    assert (raised.value.fields["table"], raised.value.fields["reason"]) == (
        f"{named.schema}.gps",
        "table_gone",
    )
    assert "gps" not in named.tables()


def test_without_its_schema_nothing_is_written(named, schema_id):
    named.send("a", right(schema_id, 1))
    with pytest.raises(StorageError) as raised:
        named.ingest(table="nowhere.gps")
    assert raised.value.remedy == "CREATE SCHEMA `nowhere`"
    assert raised.value.fields["reason"] == "no_schema"
    assert not (named.folder / "checkpoint").exists()


@pytest.mark.thorough("Hive's catalog in place of Spark's own")
@pytest.mark.slow("two runs of notebooks, each with a JVM")
@pytest.mark.timeout(1200)
def test_a_laptop_with_hives_catalog_remembers_a_table_between_runs(connected, embedded, tmp_path):
    pipeline = f"orders_{uuid4().hex[:8]}"
    send_by_confluent_kafka(pipeline)
    project = UserProject(tmp_path / "project", embedded[1].environment() | {"WORKBENCH_CATALOG": "hive"})
    succeeded(project.run(f"topiclake init {pipeline} --topic {pipeline} --into default.{pipeline}"))
    written = json.loads(succeeded(project.run(f"topiclake ingest {pipeline} --json")))
    assert (written["rows_written"], written["table"]["path"]) == (20, f"default.{pipeline}")
    shown = json.loads(succeeded(project.run(f"topiclake show {pipeline} --json --limit 1")))
    assert shown["records"] == 20
    assert not list(project.folder.glob("*derby*"))
