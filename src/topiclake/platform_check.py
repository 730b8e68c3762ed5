"""What the JVM that decodes must have been started with."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from topiclake.errors import PlatformError
from topiclake.session import AVRO_LIMITS, is_databricks, jvm_options

_CONF = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def require_avro_limits(spark: SparkSession) -> None:
    """Check that the JVM bounds what one Avro record may claim; else six bytes can end it.

    Raises:
        PlatformError: It does not; says which settings are missing.
    """
    try:
        found = _properties(spark)
    except PySparkException:
        # Databricks' shared clusters and serverless forbid `java_method`; the settings are told to anyone.
        text = " ".join(spark.conf.get(key, "") or "" for key in _CONF)
        found = {name: "set" for name in AVRO_LIMITS if f"-D{name}=" in text}
    missing = sorted(set(AVRO_LIMITS) - set(found))
    if missing:
        where = "the cluster's Spark config" if is_databricks() else "spark-defaults.conf or --conf"
        lines = ", ".join(f"{key} {jvm_options()}" for key in _CONF)
        raise PlatformError(
            f"the JVM has no {', '.join(missing)}: a record of six bytes could end it",
            f"put into {where}: {lines}; outside Databricks topiclake.session.local_session sets it",
        )


def _properties(spark: SparkSession) -> dict[str, str]:
    """Ask a JVM that runs tasks for its properties."""
    asked = [
        F.expr(f"java_method('java.lang.System', 'getProperty', '{name}')").alias(str(place))
        for place, name in enumerate(AVRO_LIMITS)
    ]
    row = spark.range(1).select(*asked).collect()[0]
    # Spark writes Java's null as the text "null".
    return {name: value for name, value in zip(AVRO_LIMITS, row, strict=True) if value not in (None, "null")}
