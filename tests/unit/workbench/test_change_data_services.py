"""PostgreSQL and Kafka Connect without starting them."""

from __future__ import annotations

from pathlib import Path

import pytest

from topiclake.errors import PlatformError
from workbench.host.home import Home
from workbench.host.java import Java
from workbench.services import postgres
from workbench.services.kafka_connect import KafkaConnect, connector_settings
from workbench.services.postgres import Postgres

PORTS = {"kafka": 1, "schema-registry": 2, "postgres": 3, "kafka-connect": 4}


def test_a_missing_postgresql_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres, "BUNDLE", "no_such_package")
    monkeypatch.setattr(postgres, "DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformError) as missing:
        Postgres(Home(tmp_path, tmp_path)).program()
    assert missing.value.fields == {"program": "postgres"}


def test_root_without_a_user_namespace_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = Postgres(Home(tmp_path, tmp_path))
    monkeypatch.setattr(postgres, "_is_root", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformError) as refused:
        server.command(Java(Path("java"), "17"), PORTS)
    assert refused.value.fields["reason"] == "root"


@pytest.mark.parametrize("form", ["avro", "json_schema", "json"])
def test_kafka_stores_no_password_and_no_port_of_a_connector(form, tmp_path: Path) -> None:
    connect = KafkaConnect(Home(tmp_path, tmp_path))
    server = Postgres(connect.home)
    server.folder.mkdir(parents=True)
    (server.folder / "password").write_text("secret password")
    connect.prepare(Java(Path("java"), "17"), PORTS)
    assert connect.environment()["CONNECT_POSTGRES_PASSWORD"] == "secret password"
    settings = connector_settings("shop", form)
    assert settings["database.port"] == "${env:CONNECT_POSTGRES_PORT}"
    shown = "".join(
        (
            *settings.values(),
            *connect.settings(PORTS).values(),
            *connect.command(Java(Path("java"), "17"), PORTS),
        )
    )
    assert "secret password" not in shown
    assert {file.stat().st_mode & 0o077 for file in connect.folder.iterdir()} == {0}
