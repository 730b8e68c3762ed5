"""Make archives of classes: of Spark, the broker and the registry, which then start faster.

python -m workbench.kernel.class_archive jars
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from topiclake.config.kafka import KafkaSettings
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.kafka.admin import ensure_topic
from topiclake.schema_registry.registry import SchemaRegistry as Registry
from topiclake.session import ARCHIVE_OPTIONS, CLASS_ARCHIVE, spark_conf
from workbench.host.home import Home
from workbench.host.java import OPTIONS_VARIABLE, short_lived
from workbench.host.processes import variables_set
from workbench.kernel.session import SUBMITTED_VARIABLES, NotebookSession
from workbench.services.control import down, start_services
from workbench.services.kafka_broker import KafkaBroker
from workbench.services.schema_registry import SchemaRegistry
from workbench.services.service import JavaService
from workbench.services.spark_cluster import MASTER_VARIABLE

_NAME = "class-archive"


def main(jars_folder: Path) -> None:
    """Start each program once, have it do a little, and keep the classes that it loaded.

    A JVM writes its archive when it ends. If it cannot, the program starts as before.
    """
    jars_folder = jars_folder.resolve()
    # A separate JVM, without a cluster: the archive is written by the JVM that this process ends.
    for name in (*SUBMITTED_VARIABLES, MASTER_VARIABLE):
        os.environ.pop(name, None)
    os.environ[OPTIONS_VARIABLE] = short_lived()[OPTIONS_VARIABLE]
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=jars_folder / "target") as name:
        folder = Path(name)
        home = Home(folder / "home", folder)
        _archive_spark(jars_folder, folder)
        _archive_service(KafkaBroker(home), folder, _send_a_record)
        _archive_service(SchemaRegistry(home), folder, _register_a_schema)


def _archive_spark(jars_folder: Path, folder: Path) -> None:
    archive, draft = jars_folder / CLASS_ARCHIVE, folder / CLASS_ARCHIVE.name
    archive.unlink(missing_ok=True)
    session = NotebookSession(_NAME, folder, jars_folder, conf=_dumping(draft))
    spark = session.start()
    table = str(folder / "table")
    for _ in range(2):
        rows = spark.range(1000).selectExpr("id", "id % 7 AS key", "cast(id AS STRING) AS text")
        rows.write.format("delta").mode("append").save(table)
    spark.read.format("delta").load(table).groupBy("key").count().orderBy("key").collect()
    query = (
        spark.readStream.format("delta")
        .load(table)
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "copy"))
    )
    query.awaitTermination()
    session.stop(seconds=60)
    _keep(draft, archive)


def _dumping(draft: Path) -> dict[str, str]:
    options = spark_conf()["spark.driver.extraJavaOptions"]
    return {
        "spark.driver.extraJavaOptions": f'{options} "-XX:ArchiveClassesAtExit={draft}" {ARCHIVE_OPTIONS}'
    }


def _archive_service(service: JavaService, folder: Path, use: Callable[[str], None]) -> None:
    """Start a service without an archive, use it by its address, and stop it."""
    draft = folder / service.class_archive.name
    service.class_archive.unlink(missing_ok=True)
    options = f"{os.environ[OPTIONS_VARIABLE]} {shlex.quote(f'-XX:ArchiveClassesAtExit={draft}')}"
    with variables_set({OPTIONS_VARIABLE: options}):
        try:
            use(start_services(service.home, [service])[service.name])
        finally:
            down(service.home)
    _keep(draft, service.class_archive)


def _send_a_record(bootstrap_servers: str) -> None:
    ensure_topic(KafkaSettings(bootstrap_servers=bootstrap_servers), _NAME, 1)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(_NAME, b"record")
    producer.flush()


def _register_a_schema(url: str) -> None:
    registry = Registry.from_settings(SchemaRegistrySettings(url=url))
    registry.by_id(registry.register(_NAME, '"string"'))


def _keep(draft: Path, archive: Path) -> None:
    if draft.exists():
        os.replace(draft, archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
