"""Missing jars: the remedy is a command that a wheel has, too."""

from __future__ import annotations

import pytest

from topiclake.errors import PlatformError
from topiclake.session import local_conf
from workbench.commands import console_consumer
from workbench.host.home import Home
from workbench.services import kafka_broker, schema_registry
from workbench.services.kafka_broker import KafkaBroker
from workbench.services.schema_registry import SchemaRegistry


@pytest.mark.parametrize("program", ["spark", "broker", "registry", "console consumer"])
def test_missing_jars_are_named_with_a_command_of_each_installation(program, tmp_path, monkeypatch):
    for module in (kafka_broker, schema_registry):
        monkeypatch.setattr(module, "jars_folder", lambda: tmp_path)
    monkeypatch.setattr(console_consumer, "fetch_jars", lambda _: tmp_path)
    home = Home(tmp_path / "home", tmp_path)
    start = {
        "spark": lambda: local_conf(tmp_path),
        "broker": lambda: KafkaBroker(home).prepare(console_consumer.require_java(), {}),
        "registry": lambda: SchemaRegistry(home)._jar(),
        "console consumer": lambda: console_consumer.consume(
            home, "gps", (), {}, avro=False, avro_keys=False
        ),
    }
    with pytest.raises(PlatformError) as raised:
        start[program]()
    assert raised.value.remedy == "python -m workbench doctor"
