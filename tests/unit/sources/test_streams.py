"""Which schemas a stream asks for; no Spark is needed for that."""

import json

import pytest

from topiclake.config.load import load_settings
from topiclake.sources import fixed_schemas, streams


@pytest.mark.parametrize("table", ["/lake/orders", "/lake/{topic}"])
def test_a_stream_asks_for_the_subject_of_its_topic_wherever_its_table_is(tmp_path, monkeypatch, table):
    pipeline = {"topic": "orders", "view": "orders", "table_path": table, "checkpoint_path": "/lake/c"}
    conf = {
        "kafka": {"bootstrap_servers": "broker:9092"},
        "schema_registry": {"url": "http://registry"},
        "storage": {"source": "file:///lake", "mount_point": "/mnt/lake"},
        "pipelines": {"orders": pipeline},
    }
    (tmp_path / "base.yaml").write_text(json.dumps(conf))
    (tmp_path / "local.yaml").write_text("")
    asked = []
    monkeypatch.setattr(
        fixed_schemas, "current_schemas", lambda _, topic, table: asked.append(topic.subjects)
    )
    streams.current_schemas(None, load_settings("orders", {}, conf=tmp_path))
    assert asked == [{"value": ("orders-value",)}]
