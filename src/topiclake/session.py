"""The Spark settings that the pipeline relies on, and a session that has them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from topiclake.errors import PlatformError

#: A hostile record may claim a string of 2 GiB; Avro allocates it before it reads it, and the JVM dies.
#: 16 MiB is above Kafka's own limit of a message (1 MiB by default) and small enough for any heap.
AVRO_LIMIT = 16 * 1024 * 1024
#: Items without bytes (nulls, records without fields, a fixed of 0) that one record may claim in all: five
#: bytes that claim 16 million end a JVM of 1 GB. Avro 1.12.2's own limit grows with the heap, by thread.
FREE_ITEMS_LIMIT = 64 * 1024
AVRO_LIMITS = {
    "org.apache.avro.limits.string.maxLength": AVRO_LIMIT,
    "org.apache.avro.limits.bytes.maxLength": AVRO_LIMIT,
    "org.apache.avro.limits.collectionItems.maxLength": AVRO_LIMIT,
    "org.apache.avro.limits.collectionItems.maxAllocation": FREE_ITEMS_LIMIT,
}

#: Below the folder of the jars, where `make setup` puts it: Spark's own classes as the JVM holds them, which
#: saves a third of its start. The JVM ignores one that does not fit it or its class path.
CLASS_ARCHIVE = Path("target", "spark.jsa")
#: An archive that does not fit is no news.
ARCHIVE_OPTIONS = "-Xshare:auto -Xlog:cds*=off -Xlog:class*=off"

#: Options and settings whose value Spark must not show in its UI, logs and plans.
REDACTION = r"(?i)secret|password|token|access[.]?key|account\.key|fs\.azure\.sas|jaas|basic\.auth"

#: The login within a text: the plan of a stream prints the options of its source as they are.
LOGIN_TEXT = r'(?<=LoginModule required )(?:[^";]++|"(?:[^"\\]++|\\.)*+")*+'


def is_databricks() -> bool:
    """Tell whether this is Databricks (clusters and serverless set DATABRICKS_RUNTIME_VERSION)."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def jvm_options() -> str:
    """Return the JVM options that driver and executors need, as one string."""
    return " ".join(f"-D{name}={value}" for name, value in AVRO_LIMITS.items())


def spark_conf() -> dict[str, str]:
    """Return what a Spark session outside Databricks is started with; docs/architecture.md says why."""
    cores = os.cpu_count() or 2
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # With 1 GB a sixth slower, measured on two cores. G1 leaves alone what the others copy over and over,
        # fetched records and pages of Parquet: 0.6 s of CPU for 5 million records, 1.7 s with ParallelGC. The
        # JVM would choose it by itself, but not on machines that it calls small.
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-XX:+UseG1GC {jvm_options()}",
        "spark.executor.extraJavaOptions": jvm_options(),
        # Delta spreads its own state over 50 tasks by default: two seconds a batch on two cores.
        "spark.databricks.delta.snapshotPartitions": str(min(cores, 8)),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        # Delta 4.4's parser does not pass on Spark 4.1's new substitution: `:name` would stay unbound.
        "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
        "spark.redaction.regex": REDACTION,
        "spark.sql.redaction.options.regex": REDACTION,
        "spark.sql.redaction.string.regex": LOGIN_TEXT,
        "spark.hadoop.fs.wasb.impl": "org.apache.hadoop.fs.azure.NativeAzureFileSystem",
        "spark.hadoop.fs.wasbs.impl": "org.apache.hadoop.fs.azure.NativeAzureFileSystem$Secure",
        "spark.delta.logStore.wasb.impl": "io.delta.storage.AzureLogStore",
        "spark.delta.logStore.wasbs.impl": "io.delta.storage.AzureLogStore",
        # With the driver's own 30 retries a wrong address hangs for many minutes.
        "spark.hadoop.fs.azure.io.retry.max.retries": "3",
    }


def local_session(app_name: str, jars_folder: Path, extra_conf: dict[str, str] | None = None) -> SparkSession:
    """Start Spark in this process, with the jars that `make jars` fetched.

    Args:
        app_name: Shown in Spark's UI and logs.
        jars_folder: The project's `jars/`; its `spark` and `avro` modules are used.
        extra_conf: Settings on top of `spark_conf()`.

    Raises:
        PlatformError: The jars were not fetched, or Spark cannot start (a full disk, a wrong setting).
    """
    # The JVM compares the archive's class path with its own letter by letter.
    jars_folder = jars_folder.resolve()
    jars, avro = (
        sorted(jars_folder.glob("spark/target/jars/*.jar")),
        sorted(jars_folder.glob("avro/target/jars/*.jar")),
    )
    if not jars or not avro:
        raise PlatformError(f"Spark's jars are not in {jars_folder}", "make jars")
    conf = spark_conf() | {
        "spark.jars": ",".join(map(str, jars)),
        # In front of Spark's own Avro, see AVRO_LIMIT.
        "spark.driver.extraClassPath": str(avro[0]),
        "spark.executor.extraClassPath": str(avro[0]),
    }
    if (archive := jars_folder / CLASS_ARCHIVE).exists():
        conf["spark.driver.extraJavaOptions"] += f' "-XX:SharedArchiveFile={archive}" {ARCHIVE_OPTIONS}'
    # Spark would take the first python3 of the path, which need not have the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(os.environ.get("SPARK_MASTER", "local[*]"))
    for key, value in (conf | (extra_conf or {})).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        raise PlatformError(
            f"Spark cannot start: {error.java_exception}", "python -m workbench doctor"
        ) from None
