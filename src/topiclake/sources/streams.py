"""Topics as streaming DataFrames, for custom windows, joins and sinks."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.errors import ConfigError
from topiclake.formats.declared import DeclaredFormat
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import source as kafka_source
from topiclake.schema_registry import wire_format
from topiclake.session import require_avro_limits, require_redaction
from topiclake.sources import declared_rows, fixed_schemas
from topiclake.sources.fixed_schemas import FixedSchemas
from topiclake.sources.layout import Layout
from topiclake.sources.topic_schemas import TopicSchemas
from topiclake.storage import mount
from topiclake.storage.failures import storage_errors


def read_records(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read a topic as a stream of Kafka's records, with nothing decoded.

    Returns:
        A streaming DataFrame with the columns of Kafka's source, `headers` among them. It also has the parts
        of a value in Confluent's format: `magicByte BINARY, valueSchemaId INT` (null if it names no schema),
        and the remaining bytes, `fixedValue BINARY`.

    Raises:
        TopicNotFoundError: The broker does not hold the topic; names three that are like it.
        KafkaError: The broker cannot be used.
        PlatformError: Spark would show the login of the broker; names the settings.

    Example:
        >>> tl.read_records(spark, settings).select("value").isStreaming
        True
    """
    value = F.col("value")
    return topic_records(spark, settings).withColumns(
        {
            "magicByte": F.substring(value, 1, 1),
            "valueSchemaId": wire_format.schema_id_of(wire_format.header_of(value)),
            "fixedValue": wire_format.payload_of(value),
        }
    )


def read_values(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read a topic as a stream.

    Args:
        spark: The session.
        settings: The configuration. In mode FAILFAST, a record that is not right ends each query that reads
            it. In mode PERMISSIVE, the record is omitted, and `start_quarantine` keeps it.

    Returns:
        A streaming DataFrame: the columns of `value_schema`, or of the versions that the registry lists now,
        or `value STRING`. The next column is `_kafka STRUCT<partition INT, offset BIGINT>`, or has the fields
        of `kafka_fields`. Columns for key and headers follow, if they are configured.

    Raises:
        ConfigError: Values are plain Avro, which does not name its schema, or the schema cannot be used.
        TopicNotFoundError: The broker does not hold the topic; names three that are like it.
        KafkaError, SchemaRegistryError: A service cannot be used.
        PlatformError: Spark would show the login of the broker; names the settings.
        NewSchemaError: In the query, at a record whose schema the registry did not list at the start and
            `start_quarantine` has not decided. The function `start_restarted` starts the query again.

    Example:
        >>> hot = tl.read_values(spark, settings).where("celsius > 80")
        >>> query = tl.start_memory(hot.select("sensor"), "hot", output_mode="append")
        >>> tl.await_caught_up(query, "availableNow")
        >>> spark.table("hot").collect()
        [Row(sensor='boiler')]
    """
    require_named(settings.pipeline)
    return decode_values(topic_records(spark, settings), settings)


def decode_values(records: DataFrame, settings: Settings) -> DataFrame:
    """Decode records of a topic: those of `read_batch`, or of a stream that was filtered before.

    Args:
        records: Kafka's columns, `headers` among them.
        settings: As for `read_values`.

    Returns:
        The columns of `read_values`; raises as it does.

    Example:
        >>> tl.decode_values(tl.read_batch(spark, settings), settings).count()
        4
    """
    pipeline, layout = settings.pipeline, Layout.from_settings(settings.pipeline)
    require_named(pipeline)
    if pipeline.is_registered:
        require_avro_limits(records.sparkSession)
        fixed = current_schemas(records.sparkSession, settings)
        return fixed_schemas.valid_rows(records, fixed, layout, pipeline.mode)
    return declared_rows.read(records, DeclaredFormat.from_settings(pipeline), layout, mode=pipeline.mode)


def decode_looked_up(records: DataFrame, settings: Settings) -> DataFrame:
    """Decode valid records of a topic, also those whose schema no subject lists; `records` are no stream.

    Returns:
        The columns of `read_values`; raises as it does. Bad records have no row in any mode.
    """
    pipeline = settings.pipeline
    if not pipeline.is_registered:
        permissive = pipeline.model_copy(update={"mode": "PERMISSIVE"})
        return decode_values(records, settings.model_copy(update={"pipeline": permissive}))
    require_named(pipeline)
    require_avro_limits(records.sparkSession)
    schemas = TopicSchemas.from_settings(settings).for_topic(pipeline.topic)
    return fixed_schemas.looked_up_rows(records, schemas, Layout.from_settings(pipeline))


def topic_records(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read a topic as a stream of the columns of Kafka's source; raises as `read_records`."""
    # The plan of the query has the broker's login.
    require_redaction(spark)
    kafka_admin.require_topics(settings.kafka, settings.pipeline, waits=settings.pipeline.wait_for_topic)
    return kafka_source.read_topic(spark, settings.kafka, settings.pipeline)


def require_named(pipeline: PipelineSettings) -> None:
    """Raise a ConfigError if values do not name their schemas."""
    if pipeline.avro_form == "plain":
        raise ConfigError(
            f"values of topic {pipeline.topic} are plain Avro, which does not name its schema",
            "use start_ingest or start_archive, and a stream of the table",
            topic=pipeline.topic,
            reason="plain_avro",
        )


def current_schemas(spark: SparkSession, settings: Settings) -> FixedSchemas:
    """Return the schemas that the registry lists now, and the decisions on others."""
    table = mount.resolve(settings.storage, settings.pipeline.schemas_path)
    # A stream has one topic, even if the path of its table has a placeholder for the topic.
    schemas = TopicSchemas.from_settings(settings).for_topic(settings.pipeline.topic)
    with storage_errors(settings.storage, table):
        return fixed_schemas.current_schemas(spark, schemas, table)
