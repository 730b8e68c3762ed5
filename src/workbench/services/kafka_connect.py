"""Kafka Connect with Debezium's connector for PostgreSQL: the changes of the database as topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from topiclake.errors import PlatformError
from workbench.host.files import replace_json, replace_private
from workbench.host.installation import jars_folder
from workbench.host.java import Java
from workbench.host.ports import HOST, send_request
from workbench.services.kafka_broker import KafkaBroker, properties_text
from workbench.services.postgres import DATABASE, PUBLICATION, USER, Postgres
from workbench.services.schema_registry import SchemaRegistry
from workbench.services.service import JavaService

#: The form of keys and values: Avro through the registry, or JSON with or without its schema.
Form = Literal["avro", "json_schema", "json"]
#: The connector that `up --with postgres` registers, which is the first part of its topics' names.
CONNECTOR = DATABASE
PARTITIONS = 4
#: Modules of `jars/` that make the class path.
_MODULES = ("connect", "kafka", "avro")
#: Settings of connectors refer to these variables of the process, so that Kafka stores neither passwords nor
#: ports that another start would change.
_PORT, _PASSWORD, _REGISTRY = "CONNECT_POSTGRES_PORT", "CONNECT_POSTGRES_PASSWORD", "CONNECT_REGISTRY"
_AVRO = {
    "converter": "io.apicurio.registry.utils.converter.AvroConverter",
    "converter.apicurio.registry.url": f"${{env:{_REGISTRY}}}",
    "converter.apicurio.registry.auto-register": "true",
    # Confluent's wire format: the id in four bytes before the value, not in a header.
    "converter.apicurio.registry.as-confluent": "true",
    "converter.apicurio.registry.headers.enabled": "false",
    # The ids and the group of the registry's Confluent API.
    "converter.apicurio.registry.use-id": "contentId",
    "converter.apicurio.registry.artifact.group-id": "default",
}


@dataclass(frozen=True)
class KafkaConnect(JavaService):
    """The Kafka Connect worker of a home. Its broker stores the connectors with their positions."""

    name = "kafka-connect"
    port_names = ("kafka-connect",)

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the URL of the REST API."""
        return f"http://{HOST}:{ports['kafka-connect']}"

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Write the worker's settings and variables.

        Raises:
            PlatformError: The jars were not fetched.
        """
        folder = jars_folder() / "connect" / "target" / "jars"
        if not any(folder.glob("connect-runtime-*.jar")):
            raise PlatformError(
                f"Kafka Connect's jars are not in {folder}", "python -m workbench doctor", folder=str(folder)
            )
        super().prepare(java, ports)
        settings = properties_text(self.settings(ports))
        replace_private(self._properties_file, settings.encode("ascii"))
        variables = {
            _PORT: str(ports["postgres"]),
            _PASSWORD: Postgres(self.home).password(),
            # The converter calls the registry's own API.
            _REGISTRY: SchemaRegistry(self.home).address(ports).replace("/ccompat/v7", "/registry/v2"),
        }
        replace_json(self._variables_file, variables)

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs the worker."""
        log = "-Dorg.slf4j.simpleLogger"
        jars = ":".join(f"{jars_folder() / module / 'target' / 'jars'}/*" for module in _MODULES)
        options = [
            *self.jvm_options("512m"),
            f"{log}.defaultLogLevel=warn",
            f"{log}.log.io.debezium=info",
            # It warns of each type of PostgreSQL's own views.
            f"{log}.log.io.debezium.connector.postgresql.TypeRegistry=error",
            f"{log}.showDateTime=true",
            f"{log}.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        ]
        program = ["org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties_file)]
        return [str(java.path), *options, "-cp", jars, *program]

    def environment(self) -> dict[str, str]:
        """Return the login of the database, and the addresses that a connector needs."""
        return dict(json.loads(self._variables_file.read_text("utf-8")))

    def settings(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return the settings of the worker."""
        topics = {
            f"{kind}.storage.{key}": value
            for kind in ("config", "offset", "status")
            for key, value in (("topic", f"_connect_{kind}"), ("replication.factor", "1"))
        }
        return topics | {
            "bootstrap.servers": KafkaBroker(self.home).address(ports),
            "listeners": self.address(ports),
            "rest.advertised.host.name": HOST,
            "group.id": "workbench-connect",
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "plugin.discovery": "service_load",
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "config.providers.env.param.allowlist.pattern": "CONNECT_.*",
            # After a kill, changes since the last flush are sent again.
            "offset.flush.interval.ms": "1000",
            # One worker: nobody else could take its connectors over.
            "scheduled.rebalance.max.delay.ms": "0",
            # The least that the broker allows. A killed worker is a member of the group for so long.
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "2000",
        }

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Register the connector if it is missing, and restart it if it failed.

        Returns:
            None if the connector and its task run, else the cause.
        """
        status = self._request(ports, "GET", f"/connectors/{CONNECTOR}/status", seconds)
        if isinstance(status, str):
            return status
        if status.get("error_code") == HTTPStatus.NOT_FOUND:
            return (
                self.register(ports, CONNECTOR, connector_settings(CONNECTOR)) or "its connector is starting"
            )
        parts = [status.get("connector", {}), *status.get("tasks", ())]
        for part in parts:
            if part.get("state") == "FAILED":
                path = f"/connectors/{CONNECTOR}/restart?includeTasks=true&onlyFailed=true"
                self._request(ports, "POST", path, seconds)
                return f"its connector failed: {_cause(part.get('trace', ''))}"
        is_running = len(parts) > 1 and all(part.get("state") == "RUNNING" for part in parts)
        return None if is_running else "its connector is starting"

    def register(self, ports: Mapping[str, int], name: str, settings: Mapping[str, str]) -> str | None:
        """Add a connector, or change its settings; return None if Connect accepts them, else the cause."""
        answer = self._request(ports, "PUT", f"/connectors/{name}/config", json=dict(settings))
        return answer if isinstance(answer, str) else answer.get("message")

    def exports(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return the address."""
        return {"WORKBENCH_KAFKA_CONNECT": self.address(ports)}

    def _request(
        self, ports: Mapping[str, int], method: str, path: str, seconds: float = 2.0, **options: object
    ) -> dict[str, Any] | str:
        """Return the JSON of an answer, which may be an error's; or the cause, if Connect does not answer."""
        port = ports["kafka-connect"]
        response = send_request(port, method, f"{self.address(ports)}{path}", seconds, **options)
        if isinstance(response, str):
            return response
        try:
            return dict(response.json()) if response.content else {}
        except ValueError:
            # Its pages are no JSON until it has joined its group.
            return f"HTTP status {response.status_code}"

    @property
    def _properties_file(self) -> Path:
        return self.folder / "worker.properties"

    @property
    def _variables_file(self) -> Path:
        return self.folder / "variables.json"


def connector_settings(prefix: str, form: Form = "avro") -> dict[str, str]:
    """Return the settings of a connector for all tables of the database.

    Args:
        prefix: The first part of its topics' names, and the name of its slot in PostgreSQL: lower-case
            letters, digits and underscores.
        form: The form of keys and values.
    """
    settings = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": HOST,
        "database.port": f"${{env:{_PORT}}}",
        "database.user": USER,
        "database.password": f"${{env:{_PASSWORD}}}",
        "database.dbname": DATABASE,
        "plugin.name": "pgoutput",
        "publication.name": PUBLICATION,
        "slot.name": prefix,
        # After a kill, PostgreSQL frees the slot a moment later.
        "slot.retry.delay.ms": "1000",
        "topic.prefix": prefix,
        "topic.creation.default.partitions": str(PARTITIONS),
        "topic.creation.default.replication.factor": "1",
        # By default Debezium skips a truncate.
        "skipped.operations": "none",
        "provide.transaction.metadata": "true",
        # Names of the connector and its task in each record.
        "extended.headers.enabled": "false",
        "retriable.restart.connector.wait.ms": "1000",
    }
    if form == "avro":
        # Names of other letters would be no names in Avro.
        settings |= {"schema.name.adjustment.mode": "avro", "field.name.adjustment.mode": "avro"}
        converter = _AVRO
    else:
        converter = {
            "converter": "org.apache.kafka.connect.json.JsonConverter",
            "converter.schemas.enable": str(form == "json_schema").lower(),
        }
    return settings | {
        f"{part}.{key}": value for part in ("key", "value") for key, value in converter.items()
    }


def _cause(trace: str) -> str:
    """Return the last cause of a stack trace, without the middle of a long text: its end says what to do."""
    lines = [line.strip() for line in trace.splitlines()]
    causes = [line for line in lines if line.startswith("Caused by:")] or lines[:1]
    text = causes[-1].removeprefix("Caused by: ") if causes else "without a reason"
    return text if len(text) <= 400 else f"{text[:150]} … {text[-250:]}"
