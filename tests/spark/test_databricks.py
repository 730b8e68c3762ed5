"""What the ingest hands to Spark's Kafka source on Databricks.

No Databricks is here: these are the options, and that Spark's own source takes them, not a run there.
"""

import pytest
from pyspark.sql.types import StructType

from topiclake.config.load import load_settings
from topiclake.formats.avro.codec import AvroCodec
from topiclake.formats.codec import Codecs
from topiclake.ingest import start as ingest
from topiclake.ingest import targets
from topiclake.ingest.batch_schemas import BatchSchemas
from topiclake.ingest.start_state import StartState
from topiclake.kafka import source as kafka_source
from topiclake.kafka.source import RECORD_SCHEMA
from topiclake.sources.table_snapshot import TableSnapshot
from topiclake.storage import mount
from topiclake.streaming.checkpoint import NONE, Progress

CONF = """
kafka:
  bootstrap_servers: broker:9093
  security_protocol: SASL_SSL
  username: "{{secrets/s/user}}"
  password: "{{secrets/s/password}}"
schema_registry: {url: "https://registry"}
storage: {source: "wasbs://raw@account.blob.core.windows.net/gps", mount_point: /mnt/lake}
pipelines:
  gps: {topic: gps, view: gps, table_path: /mnt/lake/gps, checkpoint_path: /mnt/lake/checkpoint}
"""


class NoDbutils:
    """On Databricks a path is Spark's own business: nobody asks for mounts."""

    def __getattr__(self, name):
        raise AssertionError(f"dbutils.{name} was asked for")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    monkeypatch.setattr(mount, "_dbutils", NoDbutils())
    (tmp_path / "base.yaml").write_text(CONF)
    (tmp_path / "local.yaml").write_text("")
    return load_settings(
        "gps", {"env": "local"}, secrets=lambda scope, key: f"{key} of {scope}", conf=tmp_path
    )


def test_the_target_keeps_the_paths_of_the_configuration(settings):
    target = targets.target(settings)
    assert (target.table, target.quarantine, target.checkpoint) == (
        "/mnt/lake/gps",
        "/mnt/lake/gps_quarantine",
        "/mnt/lake/checkpoint",
    )


def test_the_ingest_asks_for_the_shaded_login(spark, settings, monkeypatch):
    """start_ingest up to the stream itself; from there on it needs a broker."""
    asked = {}

    class StartedError(Exception):
        pass

    def read_topic(_spark, kafka_settings, pipeline, *, known):
        assert known == {}
        asked.update(kafka_source.reader_options(kafka_settings, pipeline))
        raise StartedError

    monkeypatch.setattr(ingest.kafka_source, "read_topic", read_topic)
    monkeypatch.setattr(ingest.kafka_admin, "require_topics", lambda *_, **__: None)
    state = StartState(Progress(NONE, NONE, None), {}, None, None)
    monkeypatch.setattr(ingest.start_state, "read", lambda *_: state)
    monkeypatch.setattr(ingest.StartCheck, "run", lambda _: settings)
    monkeypatch.setattr(ingest.lost_offsets, "check_lost_offsets", lambda *_: ([], {}))
    monkeypatch.setattr(ingest, "require_redaction", lambda _: None)
    monkeypatch.setattr(ingest, "read_snapshot", lambda *_: TableSnapshot(StructType()))
    monkeypatch.setattr(BatchSchemas, "current", lambda *_: Codecs(AvroCodec()))
    with pytest.raises(StartedError):
        ingest.start_ingest(spark, settings)
    assert asked["kafka.sasl.jaas.config"] == (
        "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required "
        'password="password of s" username="user of s";'
    )


def test_sparks_source_takes_the_options(spark, settings):
    """Spark checks the source's own options here; the login is not tried before the stream starts."""
    stream = kafka_source.read_topic(spark, settings.kafka, settings.pipeline)
    assert stream.isStreaming
    wanted = {field.name: field.dataType for field in StructType.fromDDL(RECORD_SCHEMA)}
    found = {field.name: field.dataType for field in stream.schema}
    assert found.items() >= wanted.items()


def test_a_mount_point_without_mounts_is_refused_only_elsewhere(settings, monkeypatch):
    path = settings.pipeline.table_path
    assert mount.resolve(settings.storage, path) == path
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION")
    with pytest.raises(AssertionError, match=r"dbutils\.fs was asked for"):
        mount.resolve(settings.storage, path)
