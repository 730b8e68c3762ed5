"""Spark as a producer: at least once, each record with an id by which a consumer drops duplicates.

Spark repeats a task, a micro-batch or a job unless it knows that it succeeded. A record that is produced
again carries the same id, and two records never do:

- By default, the id is a hash of writer, batch and the whole record, with a number among equal records. A
  repeated batch holds the same records, however Spark distributes them. Equal records are indistinguishable,
  so any of them may be the first. For the numbers, Spark shuffles the records by key. Records of one key keep
  their order.
- With `id_columns`, the id is a hash of the writer and these columns. The caller knows that their values are
  unique, such as topic, partition and offset of the source record. Spark shuffles nothing. A repeated record
  may have another value, and a new checkpoint produces the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from topiclake.config.kafka import KafkaSettings
from topiclake.config.settings import Settings
from topiclake.errors import ConfigError, KafkaError, require_known_columns
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka.client import spark_client_options

#: The header with a record's id: 32 hexadecimal digits.
ID_HEADER = "topiclake_id"

_SEND_AGAIN = "python -m workbench status, then the same write again: consumers drop what came twice"
#: The type of Kafka's column `headers`.
HEADERS = "array<struct<key:string,value:binary>>"
_ORDER, _CONTENT, _KEY = "_topiclake_order", "_topiclake_content", "_topiclake_key"
#: JSON cuts microseconds off by default, and two records would look the same.
_EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


@dataclass(frozen=True)
class Writer:
    """Where records go, and who sends them; can be pickled, for Spark Connect."""

    name: str
    topic: str | None
    id_columns: tuple[str, ...]
    options: dict[str, str] = field(repr=False)

    @classmethod
    def from_settings(cls, settings: Settings, topic: str | None, id_columns: Sequence[str]) -> Writer:
        """Return the pipeline's writer.

        Raises:
            TopicNotFoundError: `topic` is not there.
            KafkaError: The broker cannot be used.
        """
        if topic is not None:
            kafka_admin.require_topic(settings.kafka, topic)
        options = writer_options(settings.kafka, topic)
        return cls(settings.name, topic, tuple(id_columns), options)

    def write(self, records: DataFrame, batch: str) -> None:
        """Produce the records of a batch that `batch` names for ever; raises as `send` does."""
        id_prefix = self.id_prefix
        made = identified(records, f"{id_prefix}/{batch}", id_prefix, self.id_columns)
        send(made, self.options, self.topic, _SEND_AGAIN)

    @property
    def id_prefix(self) -> str:
        """The writer's part of an id. It has the topic: the same record in two topics is two records."""
        return self.name if self.topic is None else f"{self.name}/{self.topic}"


def writer_options(kafka: KafkaSettings, topic: str | None) -> dict[str, str]:
    """Return the options of Spark's Kafka sink; without a topic the records have a column for it."""
    tuned = {"linger.ms": "20", "batch.size": "131072", "compression.type": "lz4"}
    configured = {key: str(value) for key, value in kafka.producer.items()}
    options = {} if topic is None else {"topic": topic}
    return options | spark_client_options(kafka, tuned | configured)


def write_topic(
    records: DataFrame,
    settings: Settings,
    *,
    write_id: str,
    topic: str | None = None,
    id_columns: Sequence[str] = (),
) -> None:
    """Produce the records of a batch DataFrame; all are acknowledged when it returns.

    Args:
        records: `value`, and where wanted `key`, both STRING or BINARY; `headers ARRAY<STRUCT<key STRING,
            value BINARY>>`; `topic STRING`, unless it is the argument. Other columns are not sent.
        settings: The broker, and the pipeline's name.
        write_id: The name of this write. A repeated job passes the same name, such as its day; another write
            passes another name. With `id_columns` it has no effect.
        topic: The topic of all records.
        id_columns: Columns whose values no two records share. The id of a record is a hash of them.

    Raises:
        ConfigError: A column is missing or of the wrong type, or the topic is named twice or not at all.
        TopicNotFoundError: `topic` is not there.
        KafkaError: The broker cannot be used or does not accept all records; accepted records stay.

    Example:
        >>> tl.ensure_topic(settings.kafka, "readings-text", 1)
        1
        >>> records = tl.create_view(spark, settings).selectExpr("to_json(struct(*)) AS value")
        >>> tl.write_topic(records, settings, topic="readings-text", write_id="2026-03-01")
    """
    require_columns(records, topic, id_columns)
    Writer.from_settings(settings, topic, id_columns).write(records, write_id)


def require_columns(records: DataFrame, topic: str | None, id_columns: Sequence[str]) -> None:
    """Check that Kafka accepts the columns of `records`, see `write_topic`.

    Raises:
        ConfigError: A column is missing or of the wrong type, or the topic is named twice or not at all.
    """
    types = dict(records.dtypes)
    for name, allowed in {
        "value": ("string", "binary"),
        "key": ("string", "binary", None),
        "headers": (HEADERS, None),
    }.items():
        if types.get(name) not in allowed:
            wanted = " or ".join(kind for kind in allowed if kind)
            raise ConfigError(
                f"column {name} is {types.get(name) or 'missing'}; Kafka takes {wanted}",
                f"use records.withColumn('{name}', …), or drop('{name}') if Kafka need not have it",
                column=name,
                found=types.get(name),
            )
    require_known_columns("id_columns", (name.split(".")[0] for name in id_columns), records.columns)
    if (topic is None) == ("topic" not in types):
        how = "nor a column topic" if topic is None else "and a column topic"
        raise ConfigError(
            f"the records have {'no topic' if topic is None else 'a topic'} as an argument {how}",
            "pass topic='<name>' and records.drop('topic'), or use the column alone",
            topic=topic,
        )


def identified(records: DataFrame, batch: str, writer: str, id_columns: Sequence[str] = ()) -> DataFrame:
    """Return the records as Kafka gets them: its columns, and the header with the id.

    Args:
        records: As for `write_topic`.
        batch: The permanent name of the batch: the same when it is repeated.
        writer: The name of the writer.
        id_columns: As for `write_topic`.

    Returns:
        A DataFrame `topic STRING` (if the records have it), `key BINARY, value BINARY, headers
        ARRAY<STRUCT<key STRING, value BINARY>>`.
    """
    complete = _all_columns(records)
    if id_columns:
        unique = F.to_json(F.struct(F.struct(*id_columns).alias("id"), *_topic(records)), _EXACT)
        return complete.select(*_sent(records, F.concat_ws("/", F.lit(writer), unique)))
    return _numbered(complete, records, batch)


def _all_columns(records: DataFrame) -> DataFrame:
    """Return the records with each column that Kafka knows, in the type that it has there."""
    old = F.col("headers") if "headers" in records.columns else F.lit(None)
    others = F.filter(
        F.coalesce(old.cast(HEADERS), F.array().cast(HEADERS)),
        lambda header: header["key"] != ID_HEADER,
    )
    key = F.col("key") if "key" in records.columns else F.lit(None)
    return records.withColumns(
        {"key": key.cast("binary"), "value": F.col("value").cast("binary"), "headers": others}
    )


def _topic(records: DataFrame) -> list[Column]:
    return [F.col("topic")] if "topic" in records.columns else []


def _numbered(complete: DataFrame, records: DataFrame, batch: str) -> DataFrame:
    """Identify records by what they hold and a number among equal ones; those of one key keep their order."""
    hashes = (F.coalesce(F.sha2(name, 256), F.lit("-")) for name in ("key", "value"))
    content = F.concat_ws("/", *hashes, F.sha2(F.to_json("headers"), 256), *_topic(records))
    # Records without a key have no order to keep, and need not be in one partition.
    marked = complete.withColumns({_ORDER: F.monotonically_increasing_id(), _CONTENT: content}).withColumn(
        _KEY, F.coalesce(F.sha2("key", 256), _CONTENT)
    )
    among_equals = Window.partitionBy(_KEY, _CONTENT).orderBy(_ORDER)
    number = F.row_number().over(among_equals)
    numbered = marked.repartition(_KEY).withColumn(_CONTENT, F.concat_ws("/", _CONTENT, number))
    return numbered.sortWithinPartitions(_ORDER).select(
        *_sent(records, F.concat_ws("/", F.lit(batch), _CONTENT))
    )


def _sent(records: DataFrame, unique: Column) -> list[Column]:
    name = F.substring(F.sha2(unique, 256), 1, 32)
    header = F.struct(F.lit(ID_HEADER).alias("key"), name.cast("binary").alias("value"))
    headers = F.concat("headers", F.array(header)).cast(HEADERS).alias("headers")
    return [*_topic(records), F.col("key"), F.col("value"), headers]


def send(records: DataFrame, options: Mapping[str, str], topic: str | None, remedy: str) -> None:
    """Produce the records of a batch DataFrame, as `identified` returns them.

    Raises:
        KafkaError: The broker does not take all of them; its `__context__` is what Spark said.
    """
    try:
        records.write.format("kafka").options(**options).save()
    except (PySparkException, Py4JError) as error:
        problems = re.findall(r"kafka\.common\.errors\.\w+: .*", str(error)) or [str(error)[:300]]
        id_prefix = f"topic {topic}" if topic else "Kafka"
        raise KafkaError(
            f"{id_prefix} does not accept all records: {' '.join(problems[-1].split())}",
            remedy,
            topic=topic,
            detail=" ".join(problems[-1].split()),
        ) from None


def drop_duplicates(records: DataFrame, *, within: str | None = None) -> DataFrame:
    """Drop records that were produced more than once, by the header that Topiclake's producers add.

    All records without the header stay. A stream remembers an id for `within` after it was read, so that no
    record is ever too late. A duplicate that is read after that time stays.

    Args:
        records: Kafka's columns, `headers` among them; batch or stream.
        within: An interval such as `1 hour`, longer than a producer may take from a crash to its restart.
            Streams need it; in a batch, all records are compared.

    Returns:
        A DataFrame with the columns of `records`.

    Raises:
        ConfigError: A column is missing, or a stream has no `within`.

    Example:
        >>> tl.drop_duplicates(tl.read_batch(spark, settings)).count()
        5
    """
    if missing := [
        name for name in ("topic", "partition", "offset", "headers") if name not in records.columns
    ]:
        raise ConfigError(
            f"duplicates cannot be recognized without the column {missing[0]}",
            "pass the columns of Kafka's source",
            column=missing[0],
        )
    if records.isStreaming and within is None:
        raise ConfigError(
            "a stream does not remember ids for ever", "pass within='1 hour'", parameter="within"
        )
    ours = F.filter("headers", lambda header: header["key"] == ID_HEADER)
    id_prefix = F.concat_ws("/", "topic", "partition", "offset")
    name = F.coalesce(F.try_element_at(ours, F.lit(-1))["value"].cast("string"), id_prefix)
    marked = records.withColumn(ID_HEADER, name)
    if not records.isStreaming:
        return marked.dropDuplicates([ID_HEADER]).drop(ID_HEADER)
    read_at = marked.withColumn(_ORDER, F.current_timestamp()).withWatermark(_ORDER, within or "")
    return read_at.dropDuplicatesWithinWatermark([ID_HEADER]).drop(ID_HEADER, _ORDER)
