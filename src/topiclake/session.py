"""The Spark settings that the pipeline relies on, and a session that has them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from topiclake.errors import PlatformError

_LOG = logging.getLogger(__name__)

#: A hostile record may claim a string of 2 GiB. Avro allocates it before it reads it, and the JVM dies. This
#: limit is above Kafka's own limit of a message (1 MiB by default), and small enough for any heap.
AVRO_LIMIT = 16 * 1024 * 1024
#: Items without bytes (nulls, records without fields, a fixed of 0) that one record may claim in all. Five
#: bytes that claim 16 million end a JVM of 1 GB. Avro 1.12.2's own limit grows with the heap, by thread.
FREE_ITEMS_LIMIT = 64 * 1024
AVRO_LIMITS = {
    "org.apache.avro.limits.string.maxLength": AVRO_LIMIT,
    "org.apache.avro.limits.bytes.maxLength": AVRO_LIMIT,
    "org.apache.avro.limits.collectionItems.maxLength": AVRO_LIMIT,
    "org.apache.avro.limits.collectionItems.maxAllocation": FREE_ITEMS_LIMIT,
}

#: The modules of `jars/` that Spark needs, Avro first: its jar comes before Spark's own.
JAR_MODULES = ("avro", "spark", "store", "values")
#: Below the folder of the jars, where `make setup` puts it: Spark's classes as the JVM stores them in memory.
#: It saves a third of the JVM's start. The JVM ignores an archive that does not fit it or its class path.
CLASS_ARCHIVE = Path("target", "spark.jsa")
#: The JVM does not log that an archive does not fit.
ARCHIVE_OPTIONS = "-Xshare:auto -Xlog:cds*=off -Xlog:class*=off"

#: Options and settings whose value Spark must not show in its UI, logs and plans.
REDACTION = (
    r"(?i)secret|password|token|access[.]?key|account\.key|keystore\.key|fs\.azure\.sas|jaas|basic\.auth"
)

#: Logins and private keys within a text: the plan of a stream prints the options of its source as they are.
LOGIN_TEXT = (
    r'(?<=LoginModule required )(?:[^";]++|"(?:[^"\\]++|\\.)*+")*+'
    r"|(?<=-----BEGIN PRIVATE KEY-----)[^-]++"
)
#: The beginnings of secrets that a pattern for texts must name.
_LOGIN_TEXTS = ("LoginModule required", "BEGIN PRIVATE KEY")
#: Settings that hide secrets in Spark's UI, logs and plans.
REDACTION_CONF = {
    "spark.redaction.regex": REDACTION,
    "spark.sql.redaction.options.regex": REDACTION,
    "spark.sql.redaction.string.regex": LOGIN_TEXT,
}
#: Settings and options with secrets, which the first two patterns must match.
SECRET_NAMES = (
    "fs.azure.account.key.account.dfs.core.windows.net",
    "fs.azure.sas.container.account.blob.core.windows.net",
    "fs.azure.account.oauth2.client.secret",
    "fs.s3a.access.key",
    "fs.s3a.session.token",
    "kafka.sasl.jaas.config",
    "kafka.ssl.keystore.key",
    "kafka.ssl.keystore.password",
    "basic.auth.user.info",
)

#: Number of tables over files whose lists of files Spark caches. With 0 each query lists the files again, and
#: sees the rows that a stream has written since.
FILE_LIST_CACHE_SIZE = "spark.sql.filesourceTableRelationCacheSize"
#: Number of compiled classes that Spark keeps.
CODE_CACHE_SIZE = "spark.sql.codegen.cache.maxEntries"
#: Caches of Kafka's consumers in each executor. Spark keeps 64 consumers by default, so batches of 100
#: partitions make their consumers again. It keeps the last fetch of each partition for five minutes,
#: separately for each batch read. Five reads of 80 partitions with 20,000 records each filled 2 GB.
CONSUMER_CACHE_CONF = {
    "spark.kafka.consumer.cache.capacity": "128",
    "spark.kafka.consumer.fetchedData.cache.timeout": "2s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
}

#: Stores whose credential may be renewed while they are used.
RENEWABLE = ("wasb", "wasbs", "abfs", "abfss", "s3a")

#: By session, the limits of its JVM, since Spark executes a job to read them.
_limits: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()

#: Avro's own limit if none is set: the longest array of Java.
_NO_LIMIT = 2**31 - 8
_CONF = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
#: By session of Spark Connect: whether its JVM lacks Avro's limits.
_guarded: dict[str, bool] = {}


def is_databricks() -> bool:
    """Return whether this is Databricks (clusters and serverless set DATABRICKS_RUNTIME_VERSION)."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def is_serverless() -> bool:
    """Return whether this is Databricks' serverless compute, which names the version of its client."""
    return os.environ.get("DATABRICKS_RUNTIME_VERSION", "").startswith("client.")


def parallel_tasks(spark: SparkSession) -> int:
    """Return the number of tasks that Spark can run at once; on Spark Connect, the cores of this machine."""
    return (os.cpu_count() or 1) if is_connect(spark) else spark.sparkContext.defaultParallelism


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect, which has no JVM."""
    # The class itself needs gRPC, which a session with a JVM does not.
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def jvm_options() -> str:
    """Return the JVM options that driver and executors need, as one string."""
    return " ".join(f"-D{name}={value}" for name, value in AVRO_LIMITS.items())


def spark_conf() -> dict[str, str]:
    """Return the settings of a Spark session outside Databricks; docs/platforms.md explains them."""
    cores = os.cpu_count() or 2
    # Other collectors copy fetched records and pages of Parquet repeatedly, G1 does not: 0.6 s of CPU for
    # 5 million records, 1.7 s with ParallelGC. The JVM chooses G1 by itself, but not on machines that it
    # classifies as small.
    options = f"-XX:+UseG1GC {jvm_options()}"
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # With 1 GB a sixth slower, measured on two cores.
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
        # Delta computes its state before each commit with a transaction id, by default in 50 tasks: two
        # seconds a batch. Each task costs more than the state of thousands of files.
        "spark.databricks.delta.snapshotPartitions": str(min(cores, 2)),
        "spark.sql.shuffle.partitions": str(cores),
        # A micro-batch needs more compiled classes than Spark's default of 100. Each batch would compile its
        # classes again, and run them before the JVM has optimized them.
        CODE_CACHE_SIZE: "1000",
        # By default Delta's VACUUM lists folders by 10,000 tasks: 31 s for a small table, and 2.5 s with few.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
        **CONSUMER_CACHE_CONF,
        "spark.sql.session.timeZone": "UTC",
        FILE_LIST_CACHE_SIZE: "0",
        # Delta 4.4's parser does not pass on Spark 4.1's new substitution: `:name` would stay unbound.
        "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
        **REDACTION_CONF,
        **_renewable_stores(),
        "spark.delta.logStore.wasb.impl": "io.delta.storage.AzureLogStore",
        "spark.delta.logStore.wasbs.impl": "io.delta.storage.AzureLogStore",
        # Delta's own is safe within one process only.
        "spark.delta.logStore.file.impl": "io.topiclake.store.LinkedLogStore",
        # S3, counted call by call (docs/storage.md): no request is repeated. Delta's log and streams'
        # checkpoints are made by conditional PUTs, so that two drivers do no harm.
        "spark.hadoop.fs.s3a.performance.flags": "*",
        # A file up to this size is one call, a larger one a call per part. Parts wait on the local disk.
        "spark.hadoop.fs.s3a.multipart.size": "256M",
        "spark.hadoop.fs.s3a.multipart.threshold": "256M",
        "spark.delta.logStore.s3a.impl": "io.topiclake.store.ConditionalPutLogStore",
        "spark.sql.streaming.checkpointFileManagerClass": "io.topiclake.store.CheckpointFiles",
        # S3A's own committers refuse a wrapped S3A, and so every plain Parquet, CSV or JSON file.
        "spark.hadoop.mapreduce.outputcommitter.factory.scheme.s3a": "io.topiclake.store.Committers",
        # With the drivers' own retries a wrong address hangs for many minutes.
        "spark.hadoop.fs.azure.io.retry.max.retries": "3",
        "spark.hadoop.fs.s3a.attempts.maximum": "3",
        "spark.hadoop.fs.s3a.retry.limit": "3",
        "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
    }


def _renewable_stores() -> dict[str, str]:
    front = {f"fs.{scheme}.impl": "io.topiclake.store.RenewableFiles" for scheme in RENEWABLE}
    # Spark writes checkpoints by Hadoop's other interface if possible; on S3 `CheckpointFiles` writes them.
    contexts = {
        f"fs.AbstractFileSystem.{scheme}.impl": "io.topiclake.store.RenewableContext"
        for scheme in RENEWABLE
        if scheme != "s3a"
    }
    # Hadoop would cache the first file system, with the credential that opened it.
    uncached = {f"{impl}.disable.cache": "true" for impl in front}
    return {f"spark.hadoop.{key}": value for key, value in (front | contexts | uncached).items()}


def local_session(app_name: str, jars_folder: Path, extra_conf: dict[str, str] | None = None) -> SparkSession:
    """Start Spark in this process, with the jars that `make jars` fetched.

    Args:
        app_name: Shown in Spark's UI and logs.
        jars_folder: As in `local_conf`.
        extra_conf: Settings on top of `local_conf`.

    Raises:
        PlatformError: The jars were not fetched, or Spark cannot start (a full disk, a wrong setting).
    """
    # Spark would take the first python3 of the path, which may not have the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for key, value in (local_conf(jars_folder) | (extra_conf or {})).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        # If a context has stopped meanwhile, the text has fifty lines with the place.
        problem = str(error.java_exception).partition("\n")[0]
        raise PlatformError(
            f"Spark cannot start: {problem}", "python -m workbench doctor", reason="start", detail=problem
        ) from None


def local_conf(jars_folder: Path) -> dict[str, str]:
    """Return `spark_conf` and the settings that a JVM on this machine needs.

    Args:
        jars_folder: The project's `jars/`; its modules `spark`, `store`, `values` and `avro` are used.

    Raises:
        PlatformError: The jars were not fetched.
    """
    # The JVM compares the archive's class path with its own letter by letter.
    jars_folder = jars_folder.resolve()
    modules = [sorted(jars_folder.glob(f"{module}/target/jars/*.jar")) for module in JAR_MODULES]
    if not all(modules):
        raise PlatformError(
            f"Spark's jars are not in {jars_folder}",
            "python -m workbench doctor",
            folder=str(jars_folder),
            reason="jars",
        )
    # In front of Spark's own jars, see AVRO_LIMIT. With `spark.jars`, each start copies all of them, and the
    # archive has fewer of their classes: 3.3 s for a start, and 2.6 s so.
    class_path = os.pathsep.join(str(jar) for jars in modules for jar in jars)
    conf = spark_conf() | {
        "spark.master": "local[*]",
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
    }
    if (archive := jars_folder / CLASS_ARCHIVE).exists():
        conf["spark.driver.extraJavaOptions"] += f' "-XX:SharedArchiveFile={archive}" {ARCHIVE_OPTIONS}'
    return conf


def require_avro_limits(spark: SparkSession) -> None:
    """Check that the JVM limits the memory that an Avro record may claim; otherwise six bytes can end it.

    Clients of Spark Connect may not be able to set a JVM's options, and those of serverless compute are not.
    There Python checks each Avro record first (`needs_guard`), and a warning in the log says so.

    Raises:
        PlatformError: It does not; names the missing settings.
    """
    if is_connect(spark):
        if needs_guard(spark):
            _LOG.warning(
                "the JVM of this Spark Connect server has no limits of Avro: Python checks each record "
                "before it is decoded, which takes longer; where you can, set %s of the server to %s",
                " and ".join(_CONF),
                jvm_options(),
            )
        return
    java_properties = _java_properties(spark)
    if missing := _missing_limits(java_properties):
        lines = ", ".join(f"{key} {jvm_options()}" for key in _CONF)
        raise PlatformError(
            f"the JVM has no {', '.join(_shown(name, java_properties) for name in missing)}: "
            "a record of six bytes could end it",
            f"put into {_location()}: {lines}; outside Databricks topiclake.session.local_session sets it",
            properties=tuple(missing),
        )


def needs_guard(spark: SparkSession) -> bool:
    """Return whether a JVM lacks the limits of `require_avro_limits`, on Spark Connect."""
    if not is_connect(spark):
        return False
    session = str(spark.session_id)  # type: ignore[attr-defined] # of Connect's class
    if session not in _guarded:
        _guarded[session] = bool(_missing_limits(_java_properties(spark)))
    return _guarded[session]


def _missing_limits(java_properties: Mapping[str, str]) -> list[str]:
    return sorted(name for name in AVRO_LIMITS if not _is_limit(java_properties.get(name, "")))


def _java_properties(spark: SparkSession) -> dict[str, str]:
    with contextlib.suppress(PySparkException):
        return _properties(spark)
    # Databricks' shared clusters and serverless forbid `java_method`, but any user may read the settings.
    text = ""
    with contextlib.suppress(PySparkException):
        text = " ".join(spark.conf.get(key, "") or "" for key in _CONF)
    return dict(re.findall(r"-D([^\s=]+)=([^\s\"']*)", text))


def require_redaction(spark: SparkSession) -> None:
    """Check that Spark hides the secrets of stores and Kafka in its UI, logs and plans.

    Serverless has neither a Spark UI nor these settings, so nothing is checked there.

    Raises:
        PlatformError: A setting is missing, or its pattern misses a secret; names the settings.
    """
    if is_serverless():
        return
    weak = [key for key in REDACTION_CONF if not _hides(key, spark.conf.get(key, "") or "")]
    if weak:
        lines = ", ".join(f"{key} {REDACTION_CONF[key]}" for key in weak)
        raise PlatformError(
            f"{' and '.join(weak)} would not hide the secrets of stores and Kafka in Spark's UI and plans",
            f"put into {_location()}: {lines}; outside Databricks topiclake.session.local_session sets it",
            settings=tuple(weak),
        )


def _hides(key: str, pattern: str) -> bool:
    """Return whether a pattern hides secrets."""
    # Java's patterns for texts have more syntax than Python's, so the pattern itself is searched.
    if key == "spark.sql.redaction.string.regex":
        return all(part in pattern for part in _LOGIN_TEXTS)
    try:
        return all(re.search(pattern, name) for name in SECRET_NAMES) and bool(pattern)
    except re.error:
        return False


def _location() -> str:
    return "the cluster's Spark config" if is_databricks() else "spark-defaults.conf or --conf"


def _is_limit(value: str) -> bool:
    """Return whether Avro accepts a value as limit; it ignores text and numbers below 0, with a warning."""
    return value.isdecimal() and 0 < int(value) < _NO_LIMIT


def _shown(name: str, java_properties: dict[str, str]) -> str:
    return f"{name} (it is {java_properties[name]!r})" if name in java_properties else name


def _properties(spark: SparkSession) -> dict[str, str]:
    """Ask a JVM that runs tasks for its properties, once for each session."""
    if spark in _limits:
        return _limits[spark]
    columns = [
        F.expr(f"java_method('java.lang.System', 'getProperty', '{name}')").alias(str(index))
        for index, name in enumerate(AVRO_LIMITS)
    ]
    row = spark.range(1).select(*columns).collect()[0]
    # Spark writes Java's null as the text "null".
    limits = zip(AVRO_LIMITS, row, strict=True)
    _limits[spark] = {name: value for name, value in limits if value not in (None, "null")}
    return _limits[spark]
