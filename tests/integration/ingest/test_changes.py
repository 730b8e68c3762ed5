"""A pipeline with `apply: upsert` on the embedded broker and registry: Avro of Debezium's form."""

import io
import json
from uuid import uuid4

import fastavro
import pytest
import yaml
from confluent_kafka import Producer

import topiclake as tl
from tests.support.numbers_topic import crash_after_batch
from tests.support.recreated_topic import recreate
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, IngestError, OffsetsLostError
from topiclake.ingest.targets import TOPIC_PROPERTY
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame

KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def envelope(*columns):
    """Return the schema of Debezium's records of a table with a key `id` and text columns."""
    texts = [{"name": name, "type": ["null", "string"], "default": None} for name in columns]
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}, *texts]}
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
    return {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
        ],
    }


class Customers:
    """A topic of changes, and its pipeline."""

    def __init__(self, spark, addresses, folder):
        self.spark, self.folder, self.topic = spark, folder, f"customers-{uuid4().hex[:8]}"
        self.second = f"{self.topic}-second"
        self.base = {
            "kafka": {"bootstrap_servers": addresses.kafka_bootstrap_servers},
            "schema_registry": {"url": addresses.schema_registry_url, "new_id_seconds": 0},
            "storage": {"source": folder.as_uri(), "mount_point": "/mnt/lake"},
        }
        self.settings = self.configured()
        self.registry = SchemaRegistry.from_settings(self.settings.schema_registry)
        for topic in (self.topic, self.second):
            tl.ensure_topic(self.settings.kafka, topic, 2)
            self.key = self.registry.register(f"{topic}-key", json.dumps(KEY))

    def configured(self, **given):
        pipeline = {
            "topic": self.topic,
            "view": "customers",
            "table_path": "/mnt/lake/customers",
            "checkpoint_path": "/mnt/lake/checkpoint",
            "key": "avro",
            "apply": "upsert",
            "changes": {"envelope": "debezium", "order": ["source.lsn"]},
        }
        (self.folder / "conf").mkdir(exist_ok=True)
        for name, content in (("base", self.base | {"pipelines": {"shop": pipeline | given}}), ("local", {})):
            (self.folder / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(content))
        return tl.load_settings("shop", {}, conf=self.folder / "conf")

    def register(self, *columns, subject="value", topic=None):
        schema = envelope(*columns)
        return self.registry.register(f"{topic or self.topic}-{subject}", json.dumps(schema)), schema

    def send(self, *records, topic=None):
        """Send (version, partition, id, op, lsn, columns of the row); an op of None is a tombstone."""
        producer = Producer(tl.client_settings(self.settings.kafka))
        for version, partition, number, op, lsn, row in records:
            key = frame(self.key, _encoded(KEY, {"id": number}))
            value = None
            if op is not None:
                part = {"id": number} | row
                sides = {"before": part} if op == "d" else {"after": part}
                schema_id, schema = version
                value = frame(schema_id, _encoded(schema, {"source": {"lsn": lsn}, "op": op} | sides))
            producer.produce(topic or self.topic, key=key, value=value, partition=partition)
        assert producer.flush(120) == 0

    def ingest(self):
        query = tl.start_ingest(self.spark, self.settings)
        tl.await_caught_up(query, "availableNow")
        return query

    def rows(self):
        return {row["id"]: row for row in tl.create_view(self.spark, self.settings).collect()}


def _encoded(schema, value):
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return written.getvalue()


@pytest.mark.slow("two runs of a query, and a topic that is created again")
def test_changes_that_offsets_order_continue_with_no_other_topic(connected, embedded, tmp_path):
    shop = Customers(connected, embedded[1], tmp_path)
    version = shop.register("name")
    by_offset = {"changes": {"envelope": "debezium"}}
    # A user's table has no `_cdc` before the first start.
    shop.settings = shop.configured(**by_offset, resume="restart")
    table = f"delta.`{tl.table_path(shop.settings)}`"
    connected.sql(f"CREATE TABLE {table} (id BIGINT, name STRING) USING delta")
    # The audit looks up schemas by id, too.
    unlisted = shop.register("name", "mail", subject="other")
    shop.send((version, 0, 1, "c", 1, {"name": "Ada"}), (unlisted, 0, 2, "c", 2, {"name": "Ada"}))
    shop.ingest()
    tl.audit_ingest(connected, shop.settings).require_ok()
    # The same topic is read again, and changes no row twice.
    other = by_offset | {"checkpoint_path": "/mnt/lake/other", "resume": "restart"}
    shop.settings = shop.configured(**other)
    shop.ingest()
    assert {key: row["name"] for key, row in shop.rows().items()} == {1: "Ada", 2: "Ada"}
    recreate(shop.settings.kafka, shop.topic, 2)
    shop.send((version, 0, 1, "u", 3, {"name": "Eve"}))
    shop.settings = shop.configured(**by_offset, fail_on_data_loss=False)
    for start in (shop.ingest, lambda: tl.plan_ingest(connected, shop.settings)):
        with pytest.raises(OffsetsLostError) as lost:
            start()
        assert [span[-1] for span in lost.value.fields["ranges"]] == ["recreated"]
        assert lost.value.remedy.startswith("set a new checkpoint_path and table_path")
    shop.settings = shop.configured(**other | {"checkpoint_path": "/mnt/lake/third"})
    noted = delta.properties(connected, tl.table_path(shop.settings))[TOPIC_PROPERTY]
    connected.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{TOPIC_PROPERTY}')")
    with pytest.raises(IngestError) as refused:
        shop.ingest()
    fields = {name: refused.value.fields[name] for name in ("reason", "partition", "offset")}
    assert fields == {"reason": "other_topic", "partition": 0, "offset": 1}
    # The new topic is as long as the table.
    shop.send(*[(version, 0, 1, "u", 4, {"name": "Eve"})] * 2)
    connected.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{TOPIC_PROPERTY}' = '{noted}')")
    for start in (shop.ingest, lambda: tl.plan_ingest(connected, shop.settings)):
        with pytest.raises(IngestError) as refused:
            start()
        fields = {name: refused.value.fields[name] for name in ("reason", "topic", "expected")}
        assert fields == {"reason": "other_topic", "topic": shop.topic, "expected": json.loads(noted)["id"]}


@pytest.mark.thorough("several topics are tested next to it, and the example of changes.md runs a query")
@pytest.mark.slow("two runs of a query, and an audit")
def test_a_table_follows_avro_over_new_columns_and_unknown_schemas(connected, embedded, tmp_path):
    shop = Customers(connected, embedded[1], tmp_path)
    first = shop.register("name")
    (planned,) = tl.plan_ingest(connected, shop.settings).tables
    assert (planned.exists, planned.columns.split(",_cdc")[0]) == (False, "id BIGINT,name STRING")
    shop.send(
        (first, 0, 1, "r", 10, {"name": "Ada"}),
        (first, 0, 2, "c", 11, {"name": "Bob"}),
        (first, 1, 3, "c", 12, {"name": "Cem"}),
        (first, 0, 1, "u", 20, {"name": "Eve"}),
    )
    query = shop.ingest()
    assert {key: row["name"] for key, row in shop.rows().items()} == {1: "Eve", 2: "Bob", 3: "Cem"}
    assert tl.summarize(connected, shop.settings, query).rows_written == 3
    second = shop.register("name", "mail")
    shop.send(
        (second, 1, 3, "u", 30, {"name": "Cem", "mail": "c@example.org"}),
        (first, 0, 2, "d", 31, {"name": None}),
        (None, 0, 2, None, None, {}),
        (first, 1, 1, "u", 15, {"name": "an older change in another partition"}),
        ((second[0] + 1_000_000, second[1]), 0, 4, "c", 40, {"name": "of an unknown schema"}),
    )
    query = shop.ingest()
    rows = shop.rows()
    assert {key: row["name"] for key, row in rows.items()} == {1: "Eve", 3: "Cem"}
    assert (rows[3]["mail"], set(rows[1].asDict())) == ("c@example.org", {"id", "name", "mail"})
    summary = tl.summarize(connected, shop.settings, query)
    assert (summary.quarantined, summary.table.rows) == ({"unknown_schema_id": 1}, 2)
    report = tl.audit_ingest(connected, shop.settings)
    report.require_ok()
    names = ("in_kafka", "in_table", "deleted", "superseded", "skipped", "quarantined")
    sums = [sum(getattr(partition, name) for partition in report.partitions) for name in names]
    assert sums == [9, 3, 1, 4, 1, 1]
    shop.settings = shop.configured(changes={"envelope": "debezium"})
    with pytest.raises(ConfigError) as raised:
        shop.ingest()
    assert raised.value.fields["reason"] == "rules"


@pytest.mark.slow("two runs of a query of two topics, and an audit")
def test_each_of_several_topics_has_its_table_once_also_after_a_crash(connected, embedded, tmp_path):
    shop = Customers(connected, embedded[1], tmp_path)
    shop.settings = shop.configured(topic=f"{shop.topic},{shop.second}", table_path="/mnt/lake/{topic}")
    topics = {shop.topic: ("name",), shop.second: ("name", "mail")}
    for topic, columns in topics.items():
        version = shop.register(*columns, topic=topic)
        shop.send(
            (version, 0, 1, "c", 1, {"name": "Ada"}),
            (version, 1, 2, "c", 2, {"name": topic}),
            (version, 0, 1, "d", 3, {}),
            topic=topic,
        )
    shop.ingest()
    crash_after_batch(tmp_path / "checkpoint", 0)
    shop.ingest()
    for topic, columns in topics.items():
        rows = tl.create_view(connected, shop.settings.for_topic(topic)).collect()
        assert [row.asDict() for row in rows] == [{"id": 2} | dict.fromkeys(columns) | {"name": topic}]
    report = tl.audit_ingest(connected, shop.settings)
    report.require_ok()
    assert sum(partition.in_table for partition in report.partitions) == 4
