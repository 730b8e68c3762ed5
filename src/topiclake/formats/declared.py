"""Values that are text or JSON, or become JSON: DataFrame → DataFrame, nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from operator import and_
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from topiclake.config.pipeline import PipelineSettings
from topiclake.errors import ConfigError
from topiclake.formats import deserializers
from topiclake.formats.codec import OWN, decoded_row, is_decoded_key, once
from topiclake.formats.json import diagnosis as json_diagnosis
from topiclake.formats.json.frame import FRAME, event_of, framed, is_single_object
from topiclake.reasons import OK, TOMBSTONE, UNDECODABLE
from topiclake.schema_registry.wire_format import Part

_FRAMED = f"{OWN}framed"
_DESERIALIZED = f"{OWN}deserialized"
#: Names of columns that rows have in addition to those of their values.
_RESERVED = (OWN, "_kafka", "_headers")
_TEXT = StructType([StructField("value", StringType())])


@dataclass(frozen=True)
class DeclaredFormat:
    """The format of values; can be pickled, for Spark Connect.

    Attributes:
        value_format: `json`, `text` or `custom`.
        columns: The rows' columns: the fields of JSON objects, or `value STRING` of text. A record must have
            the fields that are not nullable.
        timestamp_format: Spark's pattern for fields of type TIMESTAMP; None: ISO 8601.
        deserializer: The name of the function or class that makes JSON of custom values.
        deserializer_config: The configuration of a class of that name.
        key: The format of keys; None if they are not decoded.
        keeps_tombstones: Whether a null value is a row of nulls.
    """

    value_format: Literal["json", "text", "custom"]
    columns: StructType
    timestamp_format: str | None = None
    deserializer: str | None = None
    deserializer_config: tuple[tuple[str, str], ...] = ()
    key: DeclaredFormat | None = None
    keeps_tombstones: bool = False

    @staticmethod
    def from_settings(pipeline: PipelineSettings) -> DeclaredFormat:
        """Return the format that a configuration declares; there must be a session.

        Raises:
            ConfigError: Values name schemas, or `value_schema` or `deserializer` cannot be used.
        """
        key = DeclaredFormat.of_key(pipeline)
        if pipeline.value_format == "text":
            return DeclaredFormat("text", _TEXT, key=key, keeps_tombstones=pipeline.keeps_tombstones)
        if pipeline.value_schema is None or not (
            pipeline.value_format == "json" or pipeline.value_format == "custom"
        ):
            raise ConfigError(
                f"values of topic {pipeline.topic} are {pipeline.value_format}",
                "set value_format to json, text or custom",
                topic=pipeline.topic,
                value_format=pipeline.value_format,
            )
        name, config = pipeline.deserializer, pipeline.deserializer_config
        if name is not None and deserializers.is_class(name):
            deserializers.require_class(SparkSession.active(), name, config)
        elif name is not None:
            deserializers.load(name)
        return DeclaredFormat(
            pipeline.value_format,
            columns_of(pipeline.value_schema, other_columns=_other_columns(pipeline)),
            pipeline.timestamp_format,
            name,
            tuple(config.items()),
            key,
            pipeline.keeps_tombstones,
        )

    @staticmethod
    def of_key(pipeline: PipelineSettings) -> DeclaredFormat | None:
        """Return the format of keys that name no schema, or None if they are not decoded.

        Raises:
            ConfigError: `key_schema` is no list of columns.
        """
        if pipeline.key == "string":
            return DeclaredFormat("text", _TEXT)
        if pipeline.key != "json" or pipeline.key_schema is None:
            return None
        return DeclaredFormat("json", columns_of(pipeline.key_schema, "key_schema"))

    def meaning(self, time_zone: str) -> str:
        """Return a name of the format: another schema has another name.

        Args:
            time_zone: The zone of the session, in which Spark reads a time without a zone.
        """
        text_of_meaning = f"{self.value_format}/{self.timestamp_format}/{self.columns.json()}"
        text_of_meaning += f"/{time_zone}" if '"timestamp"' in self.columns.json() else ""
        text_of_meaning += f"/{self.deserializer}" if self.deserializer else ""
        text_of_meaning += f"/{json.dumps(self.deserializer_config)}" if self.deserializer_config else ""
        text_of_meaning += "/tombstones" if self.keeps_tombstones else ""
        text_of_meaning += f"/key/{self.key.meaning(time_zone)}" if self.key else ""
        return sha256(text_of_meaning.encode()).hexdigest()[:16]

    def decode(self, records: DataFrame) -> DataFrame:
        """Read each value.

        Args:
            records: Kafka's columns.

        Returns:
            Kafka's columns, `event STRUCT<columns>` and `reason STRING`: ok, tombstone or undecodable. With a
            `key`, `decoded_key` (see `decode_key`) as well.
        """
        if self.key is not None:
            records = self.key.decode_key(records)
        rows, event, is_valid = self._read(records, "value")
        is_tombstone = F.col("value").isNull()
        if self.keeps_tombstones:
            is_valid = is_tombstone | is_valid
        if self.key is not None:
            is_valid = is_valid & is_decoded_key()
        reason = F.when(is_valid, OK).otherwise(UNDECODABLE)
        if not self.keeps_tombstones:
            reason = F.when(is_tombstone, TOMBSTONE).otherwise(reason)
        return rows.withColumn("event", event).withColumn("reason", reason).drop(_FRAMED, _DESERIALIZED)

    def decode_key(self, records: DataFrame) -> DataFrame:
        """Read each key.

        Returns:
            The columns of `records` and the struct `decoded_key`. Its field `event` is the text, or a struct
            of the columns. Its field `_topiclake_end BIGINT` is END if the key is right.
        """
        rows, event, is_valid = self._read(records, "key")
        event = event["value"] if self.value_format == "text" else event
        row = decoded_row([F.when(is_valid, event).alias("event")], is_valid)
        return rows.withColumn("decoded_key", row).drop(_FRAMED)

    def _read(self, records: DataFrame, part: Part) -> tuple[DataFrame, Column, Column]:
        """Return the records with their parts read, the event of each, and whether it is right."""
        # Non-deterministic, so that no filter is pushed below it, which would read each value twice.
        text = F.col(part).cast("string")
        if self.deserializer is not None:
            if deserializers.is_class(self.deserializer):
                deserializers.register(records.sparkSession)
            records = records.withColumn(_DESERIALIZED, self._deserialized(F.col("value")))
            text = F.col(f"{_DESERIALIZED}.text")
        rows, is_valid = records, F.is_valid_utf8(text)
        if self.value_format == "text":
            event = F.struct(text.alias("value"))
        else:
            pattern = {"timestampFormat": self.timestamp_format} if self.timestamp_format else {}
            guarded = once(framed(text, self.columns, **pattern))
            rows = records.withColumn(_FRAMED, guarded)
            event = event_of(F.col(_FRAMED)).dropFields(FRAME)
            is_valid = is_valid & is_single_object(F.col(_FRAMED))
        return rows, event, reduce(and_, _required(self.columns, event), is_valid)

    def detail(self) -> Column:
        """Say what is wrong with a decoded record that is not valid; runs Python for the undecodable."""
        # Spark runs Python for every row of a projection, also where a CASE does not ask for it.
        undecodable = F.when(F.col("reason") == UNDECODABLE, F.col("value"))
        schema = F.lit(self.columns.json())
        if self.deserializer is None:
            text = json_diagnosis.reason(undecodable, schema)
        else:
            result = self._deserialized(undecodable)
            text = F.coalesce(result["error"], json_diagnosis.reason(result["text"].cast("binary"), schema))
        if self.key is not None:
            text = F.when(~is_decoded_key(), self.key.key_detail()).otherwise(text)
        return F.when(F.col("reason") == TOMBSTONE, "the value is null").otherwise(text)

    def key_detail(self) -> Column:
        """Say what is wrong with the key of a record whose key is not right; JSON runs Python."""
        if self.value_format == "text":
            return F.lit("key: its bytes are no UTF-8")
        undecodable = F.when(~is_decoded_key(), F.col("key"))
        return F.concat(F.lit("key: "), json_diagnosis.reason(undecodable, F.lit(self.columns.json())))

    def _deserialized(self, value: Column) -> Column:
        if deserializers.is_class(str(self.deserializer)):
            config = dict(self.deserializer_config)
            return deserializers.deserialized_by_class(str(self.deserializer), config, F.col("topic"), value)
        return deserializers.deserialized(deserializers.load(str(self.deserializer)), value)


def _other_columns(pipeline: PipelineSettings) -> list[str]:
    return [
        *([] if pipeline.key == "none" else ["_key"]),
        *(["_tombstone"] if pipeline.keeps_tombstones else []),
    ]


def columns_of(ddl: str, parameter: str = "value_schema", *, other_columns: Sequence[str] = ()) -> StructType:
    """Read columns from DDL; Spark does it, so there must be a session.

    Args:
        ddl: The columns.
        parameter: The key of the configuration.
        other_columns: Names of columns that rows have in addition.

    Raises:
        ConfigError: It is no list of columns, or has a name twice, a reserved name or a TINYINT.
    """
    remedy = f"set {parameter} to columns such as `id INT NOT NULL, name STRING, seen TIMESTAMP`"
    try:
        columns = StructType.fromDDL(ddl)
    except (PySparkException, ValueError) as error:
        problem = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{parameter} {ddl!r} is no list of columns: {problem}",
            remedy,
            parameter=parameter,
            found=ddl,
            reason="no_columns",
        ) from None
    if not isinstance(columns, StructType) or not columns.names:
        raise ConfigError(
            f"{parameter} {ddl!r} has no columns",
            remedy,
            parameter=parameter,
            found=ddl,
            reason="empty",
        )
    if '"byte"' in columns.json():
        raise ConfigError(
            f"{parameter} has a TINYINT, which Spark reads from 128 on as negative",
            "use SMALLINT",
            parameter=parameter,
            reason="tinyint",
        )
    names = [name.lower() for name in columns.names]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{parameter} has the column {name} twice",
                remedy,
                parameter=parameter,
                column=name,
                reason="twice",
            )
        if name.startswith(_RESERVED) or name in other_columns:
            raise ConfigError(
                f"{parameter} has a column {name}, which is a name of Topiclake's own",
                remedy,
                parameter=parameter,
                column=name,
                reason="reserved",
            )
    return columns


def _required(kind: DataType, value: Column) -> list[Column]:
    """Return the conditions on a `value` that is not null, by which its NOT NULL fields exist."""
    if isinstance(kind, ArrayType) and _has_required(kind.elementType):
        return [F.forall(value, lambda item: _is_complete(kind.elementType, item))]
    if isinstance(kind, MapType) and _has_required(kind.valueType):
        return [F.forall(F.map_values(value), lambda item: _is_complete(kind.valueType, item))]
    if not isinstance(kind, StructType):
        return []
    required = [value[each.name].isNotNull() for each in kind.fields if not each.nullable]
    inner = [each for each in kind.fields if _has_required(each.dataType)]
    return required + [_is_complete(each.dataType, value[each.name]) for each in inner]


def _is_complete(kind: DataType, value: Column) -> Column:
    return value.isNull() | reduce(and_, _required(kind, value))


def _has_required(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_required(kind.elementType)
    if isinstance(kind, MapType):
        return _has_required(kind.valueType)
    if isinstance(kind, StructType):
        return any(not each.nullable or _has_required(each.dataType) for each in kind.fields)
    return False
