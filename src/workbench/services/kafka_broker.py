"""A real Kafka broker (KRaft, one JVM) from its Maven jars."""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from topiclake.errors import KafkaError, PlatformError
from workbench.host.installation import jars_folder
from workbench.host.java import Java
from workbench.host.ports import HOST, answers
from workbench.host.processes import last_error_line
from workbench.services.service import JavaService

HEAP_VARIABLE = "WORKBENCH_KAFKA_HEAP"
_SILENT = logging.getLogger("workbench.kafka_client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@dataclass(frozen=True)
class KafkaBroker(JavaService):
    """The broker of a home."""

    name = "kafka"
    port_names = ("kafka", "kafka-controller")

    @property
    def properties_file(self) -> Path:
        """The broker's configuration, which each start writes again."""
        return self.home.data / "server.properties"

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the bootstrap servers."""
        return f"{HOST}:{ports['kafka']}"

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Write `server.properties`, and format the storage when it is new.

        Raises:
            PlatformError: The jars were not fetched.
            KafkaError: The storage cannot be formatted.
        """
        if not any(self._jars.glob("kafka_*.jar")):
            raise PlatformError(
                f"Kafka's jars are not in {self._jars}", "python -m workbench doctor", folder=str(self._jars)
            )
        super().prepare(java, ports)
        self.properties_file.touch(mode=0o600)
        self.properties_file.write_text(properties_text(self.settings(ports)), encoding="ascii")
        if not (self.folder / "meta.properties").exists():
            self._format(java)

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs the broker."""
        return [str(java.path), *self._java_options(), "kafka.Kafka", str(self.properties_file)]

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Ask the broker for its topics; return None if it answers, else the cause."""
        if not answers(ports["kafka"], seconds):
            return "nothing listens on its port"
        try:
            client = AdminClient(self.client_settings(ports), logger=_SILENT)
            brokers = client.list_topics(timeout=seconds).brokers
        except KafkaException as error:
            return str(error.args[0].str() if error.args else error)
        return None if brokers else "it lists no broker"

    def client_settings(self, ports: Mapping[str, int]) -> dict[str, Any]:
        """Return the settings of the client that asks the broker for its topics."""
        return {"bootstrap.servers": self.address(ports), "log_level": 0, "error_cb": lambda _: None}

    def settings(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return what `server.properties` holds."""
        client, controller = self.address(ports), f"{HOST}:{ports['kafka-controller']}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listeners": f"CLIENT://{client},CONTROLLER://{controller}",
            "advertised.listeners": f"CLIENT://{client}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder),
            # By default records are deleted seven days after their own timestamp, which replayed ones exceed.
            "log.retention.ms": "-1",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }

    @property
    def _jars(self) -> Path:
        return jars_folder() / "kafka" / "target" / "jars"

    def _java_options(self) -> list[str]:
        log = "-Dorg.slf4j.simpleLogger"
        return [
            *self.jvm_options(os.environ.get(HEAP_VARIABLE, "1g")),
            f"{log}.defaultLogLevel=warn",
            f"{log}.log.kafka.server=info",
            f"{log}.showDateTime=true",
            f"{log}.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
            "-cp",
            f"{self._jars}/*",
        ]

    def _format(self, java: Java) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if cluster_id.startswith("-"):  # the tool would read it as an option
            cluster_id = "A" + cluster_id[1:]
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.properties_file)]
        command = [str(java.path), *self._java_options(), *tool, "--ignore-formatted"]
        log = self.home.log(self.name)
        with log.open("wb") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, timeout=120)
        if done.returncode:
            cause = f"Kafka's storage cannot be formatted: {last_error_line(log)} (log: {log})"
            raise KafkaError(cause, f"python -m workbench logs {self.name}", service=self.name)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the settings as a Java properties file: backslashes doubled, other alphabets escaped."""
    lines = (f"{key}={value}".replace("\\", "\\\\").replace("\n", "\\n") for key, value in settings.items())
    return "".join(f"{_escaped(line)}\n" for line in lines)


def _escaped(text: str) -> str:
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)
