"""Iceberg's sink connector in a standalone worker of Kafka Connect, as a side of bench/race.py.

The worker loads Iceberg's jars and Hadoop's client, which is PySpark's, as an isolated plugin. The converters
are those of the workbench. A hadoop catalog is a folder, so this module reads the table from its files.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import click
import fastavro
import psutil

from bench.rounds import PROJECT, Run
from topiclake.config.settings import Settings
from topiclake.kafka import admin as kafka_admin
from workbench.host.files import replace_private
from workbench.host.installation import jars_folder, spark_home
from workbench.host.java import require_java
from workbench.host.ports import HOST, choose
from workbench.services.kafka_broker import properties_text

JARS = PROJECT / "bench" / "iceberg" / "target" / "jars"
#: Iceberg reads and writes local files with Hadoop's client.
HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar")
#: Modules of `jars/` that make the worker's class path.
MODULES = ("connect", "kafka", "avro")
NAMESPACE, TABLE = "race", "events"
#: Each connector's tasks agree by a topic about when to commit.
CONTROL = "control"
TASKS = 2
#: Milliseconds between two commits. The default is five minutes.
COMMIT_MS = 2_000
POLL_SECONDS, MOST_SECONDS = 0.05, 900.0
#: The status of a manifest's entry whose file is no longer in the table.
DELETED = 2
FAILURE = "Task threw an uncaught and unrecoverable exception"


@dataclass(frozen=True)
class Sink:
    """A worker with one connector, which drains a topic into an Iceberg table.

    Attributes:
        folder: A new folder for the table and the files of the worker.
        settings: The broker, the registry and the topic.
    """

    folder: Path
    settings: Settings

    def drain(self, rows: int) -> Run:
        """Drain the topic until the table has all rows; the seconds include the start of the JVM.

        Raises:
            ClickException: The worker ended, its task failed, or it did not commit all rows in time.
        """
        with self.worker() as process:
            started = time.monotonic()
            self.await_rows(process, rows)
            used = process.cpu_times()
            return {"seconds": time.monotonic() - started, "cpu_seconds": used.user + used.system}

    @contextmanager
    def worker(self) -> Iterator[psutil.Popen]:
        """Start the worker, and kill it at the end."""
        self._prepare()
        with self._log.open("wb") as output:
            process = psutil.Popen(self._command(), cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                process.kill()
            process.wait()

    def await_rows(self, process: psutil.Popen, rows: int) -> None:
        """Wait until the table has a number of rows.

        Raises:
            ClickException: The worker ended, its task failed, or it did not commit all rows in time.
        """
        started = time.monotonic()
        while (found := self._rows()) < rows:
            seconds = time.monotonic() - started
            log = self._log.read_text("utf-8", "replace")
            if process.poll() is not None or seconds > MOST_SECONDS or FAILURE in log:
                raise click.ClickException(
                    f"{found:,} of {rows:,} rows after {seconds:.0f} s:\n{log[-3000:]}"
                )
            time.sleep(POLL_SECONDS)

    def data_files(self) -> list[str]:
        """Return the data files of the table."""
        return _files_of(self._snapshot())

    def commit_times(self) -> dict[str, float]:
        """Return by data file the time of the commit that adds it, in seconds since 1970."""
        times: dict[str, float] = {}
        for file in self._versions():
            times = dict.fromkeys(_files_of(_snapshot(file)), file.stat().st_mtime) | times
        return times

    def _prepare(self) -> None:
        plugin = self.folder / "plugins" / "iceberg"
        plugin.mkdir(parents=True)
        hadoop = [jar for pattern in HADOOP for jar in (spark_home() / "jars").glob(pattern)]
        for jar in (*JARS.glob("*.jar"), *hadoop):
            (plugin / jar.name).symlink_to(jar)
        for name, settings in (("worker", self._worker()), ("connector", self._connector())):
            replace_private(self.folder / f"{name}.properties", properties_text(settings).encode("ascii"))
        kafka_admin.ensure_topic(self.settings.kafka, self._control_topic, 1)

    def _command(self) -> list[str]:
        log = "-Dorg.slf4j.simpleLogger"
        jars = ":".join(f"{jars_folder() / module / 'target' / 'jars'}/*" for module in MODULES)
        options = ["-Xmx2g", f"{log}.defaultLogLevel=warn", f"{log}.log.org.apache.iceberg.connect=info"]
        files = [str(self.folder / f"{name}.properties") for name in ("worker", "connector")]
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        return [str(require_java().path), *options, "-cp", jars, program, *files]

    def _worker(self) -> dict[str, str]:
        bytes_only = "org.apache.kafka.connect.converters.ByteArrayConverter"
        port = choose(["connect"], {})["connect"]
        return {
            "bootstrap.servers": self.settings.kafka.bootstrap_servers,
            "listeners": f"http://{HOST}:{port}",
            "key.converter": bytes_only,
            "value.converter": bytes_only,
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "plugin.path": str(self.folder / "plugins"),
            "plugin.discovery": "service_load",
            "consumer.auto.offset.reset": "earliest",
            # At the topic's end a task answers a request to commit once in this time, by default a minute.
            "offset.flush.interval.ms": "1000",
        }

    def _connector(self) -> dict[str, str]:
        return {
            "name": self.folder.name,
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": str(TASKS),
            "topics": self.settings.pipeline.topic,
            **self._converter(),
            "iceberg.catalog": "local",
            "iceberg.catalog.type": "hadoop",
            "iceberg.catalog.warehouse": self.folder.as_uri(),
            # Both tasks create the table. By default one waits five seconds for the other's lock.
            "iceberg.catalog.lock.acquire-interval-ms": "100",
            "iceberg.tables": f"{NAMESPACE}.{TABLE}",
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.control.topic": self._control_topic,
            "iceberg.control.commit.interval-ms": str(COMMIT_MS),
        }

    def _converter(self) -> dict[str, str]:
        if self.settings.pipeline.value_format == "json":
            return {
                "value.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter.schemas.enable": "false",
            }
        registry = self.settings.schema_registry.url.replace("/ccompat/v7", "/registry/v2")
        return {
            "value.converter": "io.apicurio.registry.utils.converter.AvroConverter",
            "value.converter.apicurio.registry.url": registry,
            "value.converter.apicurio.registry.as-confluent": "true",
            "value.converter.apicurio.registry.headers.enabled": "false",
            "value.converter.apicurio.registry.use-id": "contentId",
            "value.converter.apicurio.registry.artifact.group-id": "default",
        }

    def _rows(self) -> int:
        return int(self._snapshot().get("summary", {}).get("total-records", 0))

    def _snapshot(self) -> dict[str, Any]:
        versions = self._versions()
        return _snapshot(versions[-1]) if versions else {}

    def _versions(self) -> list[Path]:
        files = (self.folder / NAMESPACE / TABLE / "metadata").glob("v*.metadata.json")
        return sorted(files, key=lambda file: int(file.name[1:].split(".")[0]))

    @property
    def _control_topic(self) -> str:
        return f"{CONTROL}-{self.folder.name}"

    @property
    def _log(self) -> Path:
        return self.folder / "worker.log"


def _snapshot(version: Path) -> dict[str, Any]:
    metadata = json.loads(version.read_text("utf-8"))
    current = metadata.get("current-snapshot-id")
    return next((each for each in metadata["snapshots"] if each["snapshot-id"] == current), {})


def _files_of(snapshot: dict[str, Any]) -> list[str]:
    manifests = _records(snapshot["manifest-list"]) if snapshot else []
    entries = [entry for manifest in manifests for entry in _records(manifest["manifest_path"])]
    return [str(_path(each["data_file"]["file_path"])) for each in entries if each["status"] != DELETED]


def _records(file: str) -> list[dict[str, Any]]:
    with _path(file).open("rb") as source:
        return [dict(record) for record in fastavro.reader(source) if isinstance(record, dict)]


def _path(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path)) if uri.startswith("file:") else Path(uri)
