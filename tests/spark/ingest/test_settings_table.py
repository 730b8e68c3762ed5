"""The effective configuration as a table: each value says where it comes from."""

from __future__ import annotations

import topiclake as tl

BASE = """
kafka: {bootstrap_servers: "b:1", consumer: {max.poll.records: 5}}
schema_registry: {url: "http://r", username: "{{secrets/s/user}}", password: "{{secrets/s/word}}"}
storage: {source: "file:///lake", mount_point: /mnt/datalake}
"""
PROD = """
kafka: {bootstrap_servers: "p:1"}
pipelines: {orders: {mode: FAILFAST}}
"""
ORDERS = """
env: prod
topic: orders
view: orders
table_path: /mnt/datalake/orders
checkpoint_path: /mnt/datalake/c
"""


def test_each_value_has_its_origin(spark, tmp_path):
    conf = tmp_path / "conf"
    (conf / "pipelines").mkdir(parents=True)
    (conf / "base.yaml").write_text(BASE)
    (conf / "prod.yaml").write_text(
        "kafka: {bootstrap_servers: 'p:1'}\npipelines: {orders: {mode: FAILFAST}}\n"
    )
    (conf / "pipelines" / "orders.yaml").write_text(ORDERS)
    settings = tl.load_settings("orders", {"trigger": "1 second", "storage": "file:///pond"}, conf=conf)
    assert settings.env == "prod"
    table = {
        row["key"]: (row["value"], row["origin"]) for row in tl.settings_table(spark, settings).collect()
    }
    assert {
        "kafka.bootstrap_servers": ("p:1", "conf/prod.yaml"),
        "kafka.consumer.max.poll.records": ("5", "conf/base.yaml"),
        "pipeline.topic": ("orders", "conf/pipelines/orders.yaml"),
        "pipeline.mode": ("FAILFAST", "conf/prod.yaml"),
        "pipeline.trigger": ("1 second", "parameter"),
        "storage.source": ("file:///pond", "parameter"),
        "pipeline.value_format": ("avro", "default"),
        "schema_registry.password": ("Secret(s/word, [REDACTED])", "conf/base.yaml"),
    }.items() <= table.items()
    assert "pipeline.topic_pattern" not in table
    assert not any("origins" in key for key in table)
