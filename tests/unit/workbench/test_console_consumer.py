"""The console consumer's refusal of a login that it has no class for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from topiclake.config.kafka import KafkaSettings
from topiclake.errors import PlatformError
from workbench.commands import console_consumer
from workbench.host.home import Home


def test_the_login_of_amazon_msk_is_refused_with_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in console_consumer._MODULES:
        folder = tmp_path / module / "target" / "jars"
        folder.mkdir(parents=True)
        (folder / "of_a_test.jar").touch()
    monkeypatch.setattr(console_consumer, "fetch_jars", lambda _: tmp_path)
    kafka = KafkaSettings(
        bootstrap_servers="b-1.shop.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098",
        security_protocol="SASL_SSL",
        sasl_mechanism="AWS_MSK_IAM",
    )
    monkeypatch.setattr(console_consumer, "pipeline_settings", lambda *_: SimpleNamespace(kafka=kafka))
    with pytest.raises(PlatformError) as raised:
        console_consumer.consume(
            Home(tmp_path / "home", tmp_path), "gps", (), {}, avro=False, avro_keys=False
        )
    assert raised.value.fields["reason"] == "aws_msk_iam"
    assert "kafka-console-consumer" in raised.value.remedy
