"""Files of other formats: each micro-batch once, also one that comes again."""

import pytest

import topiclake as tl
from tests.support.hits_topic import PROJECT
from tests.support.local_rows import local_rows
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError
from topiclake_examples.nest.file_batches import FORMATS, file_batches

CAMERAS = "device_id STRING, event STRUCT<has_person: BOOLEAN>"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    address, lake = "http://127.0.0.1:9", tmp_path.as_uri()
    addresses = {"KAFKA": "127.0.0.1:9", "SCHEMA_REGISTRY": address, "DATALAKE": lake}
    for name, value in addresses.items():
        monkeypatch.setenv(f"WORKBENCH_{name}", value)
    return load_settings("nest", {}, conf=PROJECT / "conf")


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_repeated_batch_replaces_itself(spark, settings, tmp_path, file_format):
    sink = file_batches(settings, path=(tmp_path / "files").as_uri(), file_format=file_format)
    cameras = local_rows(spark, [("a", (True,)), ("b", (False,))], CAMERAS)
    for number in (0, 1, 1):
        sink.write(cameras, tl.SinkBatch("query", number, "file:/checkpoint"))
    rows = spark.read.format(file_format).option("header", "true").load(sink.destination())
    assert rows.count() == 4
    event = rows.where("device_id = 'a' AND batch = 1").first()["event"]
    assert event == '{"has_person":true}' if file_format == "csv" else event["has_person"] is True


def test_another_format_is_refused(settings):
    with pytest.raises(ConfigError) as refused:
        file_batches(settings, path="file:/x", file_format="xml")
    assert refused.value.fields["allowed"] == FORMATS
