"""Rows to Kafka records of Confluent-framed Avro: the schemas are registered, and each row is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import to_avro

from topiclake.config.settings import Settings
from topiclake.errors import (
    ConfigError,
    EncodeError,
    SchemaRegistryError,
    require_choice,
    require_known_columns,
)
from topiclake.formats.avro import encoding as avro_encoding
from topiclake.formats.avro.encoding import Encoder
from topiclake.formats.avro.schema_of_columns import Timestamps, derived_schema
from topiclake.kafka.writer import HEADERS
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import Part, SchemaKey, identifier, record_header

#: Placeholder in `subject` for the topic of a record.
TOPIC = "{topic}"
#: Columns of rows that are no part of the value.
_OWN = ("topic", "headers")
_PROBLEM = "_topiclake_problem"


@dataclass(frozen=True)
class Proposal:
    """Schemas of records that are to be produced, before their registration; `str` shows them.

    Attributes:
        registry: The registry that is to have them.
        topics: The topics of the records.
        schemas: By part; keys only where they are Avro.
        subjects: By part and topic.
        refusals: By subject, the registry's objections to the schema; an empty list if it is compatible.
        columns: The type of the rows.
        key: Columns that keys are made of.
        in_header: Whether records name their schemas by GUID in a header.
    """

    registry: SchemaRegistry
    topics: tuple[str, ...]
    schemas: Mapping[Part, Any]
    subjects: Mapping[Part, Mapping[str, str]]
    refusals: Mapping[str, list[str]]
    columns: T.StructType
    key: tuple[str, ...]
    in_header: bool

    def __str__(self) -> str:
        lines = []
        for part, subjects in self.subjects.items():
            for subject in dict.fromkeys(subjects.values()):
                refused = self.refusals[subject]
                compatibility = f"not compatible: {'; '.join(refused)}" if refused else "compatible, or new"
                lines.append(f"subject {subject} ({part}): {compatibility}")
            lines.append(json.dumps(self.schemas[part], indent=2))
        return "\n".join(lines)

    @property
    def only_topic(self) -> str | None:
        """The topic of all rows, or None if the column `topic` names it."""
        return None if "topic" in self.columns.names else self.topics[0]

    def register(self) -> AvroRecords:
        """Register the schemas, and return the function that makes records of rows.

        Raises:
            SchemaRegistryError: The registry refuses a schema, cannot be used, or returns no GUIDs.
        """
        names: dict[Part, dict[str, bytes]] = {}
        for part, subjects in self.subjects.items():
            schema = json.dumps(self.schemas[part])
            keys = {subject: self._registered(subject, schema) for subject in set(subjects.values())}
            names[part] = {topic: identifier(keys[subject]) for topic, subject in subjects.items()}
        return AvroRecords(self.schemas, names, self.columns, self.key, self.in_header)

    def _registered(self, subject: str, schema: str) -> SchemaKey:
        if refused := self.refusals[subject]:
            raise SchemaRegistryError(
                f"the schema is not compatible with subject {subject}: {'; '.join(refused)[:500]}",
                "use another schema, or another compatibility level of the subject",
                subject=subject,
                refusals=tuple(refused),
            )
        schema_id = self.registry.register(subject, schema)
        if not self.in_header:
            return schema_id
        return self.registry.latest_guid(subject)


@dataclass(frozen=True)
class AvroRecords:
    """Function that makes records of rows for `write_topic`; can be pickled, for Spark Connect.

    Attributes:
        schemas: By part; keys only where they are Avro.
        names: By part and topic, the bytes that identify the schema.
        columns: The type of the rows.
        key: Columns that keys are made of.
        in_header: Whether schemas are named in a header.
    """

    schemas: Mapping[Part, Any]
    names: Mapping[Part, Mapping[str, bytes]]
    columns: T.StructType
    key: tuple[str, ...]
    in_header: bool

    def __call__(self, rows: DataFrame) -> DataFrame:
        """Return the records of a batch's rows, if all rows fit.

        Raises:
            EncodeError: A row does not fit its schema; names its column and its key. Nothing is sent then.
        """
        records = self._records(rows)
        bad = records.where(F.col(_PROBLEM).isNotNull()).select(_PROBLEM, "_topiclake_key").head(1)
        if bad:
            problem, key = bad[0]
            raise EncodeError(
                f"a row does not fit its schema ({problem}; its key is {key}); nothing of its batch was sent",
                "filter such rows out, or fix them",
                detail=problem,
                key=key,
            )
        return records.drop(_PROBLEM, "_topiclake_key")

    def _records(self, rows: DataFrame) -> DataFrame:
        topic = F.col("topic") if "topic" in rows.columns else F.lit(next(iter(self.names["value"])))
        parts: dict[Part, Column] = {"value": F.struct(*_values(rows.columns))}
        if self.key:
            parts["key"] = F.struct(*self.key)
        encoders = {part: _encoder(self.columns, part, self.key, self.schemas[part]) for part in self.schemas}
        unknown_topic = F.when(
            ~F.coalesce(topic.isin(list(self.names["value"])), F.lit(False)),
            F.concat(
                F.lit("column topic is "), F.coalesce(topic, F.lit("null")), F.lit(", none of those named")
            ),
        )
        problems = [unknown_topic, *(encoder.problem(parts[part]) for part, encoder in encoders.items())]
        encoded = {
            part: self._encoded(part, encoder.value(parts[part]), topic) for part, encoder in encoders.items()
        }
        no_headers = F.array().cast(HEADERS)
        headers = (
            F.coalesce(F.col("headers").cast(HEADERS), no_headers)
            if "headers" in rows.columns
            else no_headers
        )
        schema_headers = [
            F.struct(F.lit(record_header(part)).alias("key"), self._name(part, topic).alias("value"))
            for part in self.schemas
            if self.in_header
        ]
        text = F.col(self.key[0]).cast("string") if self.key else F.lit(None)
        key = encoded.get("key", text.cast("binary"))
        key_text = F.to_json(F.struct(*self.key)) if self.key else F.lit("none")
        topics = [F.col("topic")] if "topic" in rows.columns else []
        return rows.select(
            *topics,
            key.alias("key"),
            encoded["value"].alias("value"),
            F.concat(headers, F.array(*schema_headers).cast(HEADERS)).alias("headers"),
            F.coalesce(*problems).alias(_PROBLEM),
            key_text.alias("_topiclake_key"),
        )

    def _encoded(self, part: Part, value: Column, topic: Column) -> Column:
        payload = to_avro(value, json.dumps(self.schemas[part]))
        return payload if self.in_header else F.concat(self._name(part, topic), payload)

    def _name(self, part: Part, topic: Column) -> Column:
        """Return the bytes that identify the schema, by topic."""
        header = F.lit(None).cast("binary")
        for name, schema in self.names[part].items():
            header = F.when(topic == name, F.lit(schema)).otherwise(header)
        return header


def propose_schemas(
    rows: DataFrame,
    settings: Settings,
    *,
    topic: str | Sequence[str],
    schema: Mapping[str, Any] | str | None = None,
    subject: str = f"{TOPIC}-value",
    key: Sequence[str] = (),
    avro_key: bool = False,
    timestamps: Timestamps = "logical",
    schema_in: str = "prefix",
) -> Proposal:
    """Return the schemas that rows would be produced with, and whether the registry accepts them.

    Nothing is registered.

    Args:
        rows: Any columns. `headers ARRAY<STRUCT<key STRING, value BINARY>>` becomes the record's headers, and
            `topic STRING` is the topic of the row.
        settings: The registry.
        topic: The topic of all rows, or the topics that the column `topic` may name.
        schema: The Avro schema of values; None: derived from the columns (`formats.avro.schema_of_columns`).
        subject: The subject of values. `{topic}` is replaced by the topic, so each topic may have a subject.
        key: Columns that keys are made of; they stay in the value.
        avro_key: Whether keys are Avro, in the subject `<topic>-key`. Otherwise a key is one column as text.
        timestamps: Form of timestamps in a derived schema: `logical`, or `string` (ISO 8601, UTC).
        schema_in: How records name their schema: by its id in front (`prefix`), or by its GUID in a `header`.

    Returns:
        The schemas and subjects of each part, and the registry's objections to them.

    Raises:
        ConfigError: A column cannot be written as Avro, or not as the schema needs it; names the column.
        SchemaRegistryError: The registry cannot be used.

    Example:
        >>> proposal = tl.propose_schemas(tl.create_view(spark, settings), settings, topic="proposed")
        >>> proposal.refusals
        {'proposed-value': []}
    """
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    _require_possible(rows.columns, topics, key, avro_key=avro_key, schema_in=schema_in)
    columns = rows.schema
    value = T.StructType([columns[name] for name in _values(columns.names)])
    name = _record_name(topics[0])
    schemas: dict[Part, Any] = {
        "value": derived_schema(value, name, timestamps=timestamps) if schema is None else _parsed(schema)
    }
    if avro_key:
        key_type = T.StructType([columns[column] for column in key])
        schemas["key"] = derived_schema(key_type, f"{name}Key", timestamps=timestamps)
    for part, tree in schemas.items():
        _encoder(columns, part, tuple(key), tree)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    patterns: dict[Part, str] = {"value": subject, "key": f"{TOPIC}-key"}
    subjects = {
        part: {topic_name: patterns[part].replace(TOPIC, topic_name) for topic_name in topics}
        for part in schemas
    }
    refusals = {
        each: registry.refusals(each, json.dumps(schemas[part]))
        for part, by_topic in subjects.items()
        for each in dict.fromkeys(by_topic.values())
    }
    return Proposal(registry, topics, schemas, subjects, refusals, columns, tuple(key), schema_in == "header")


def _require_possible(
    columns: list[str], topics: Sequence[str], key: Sequence[str], *, avro_key: bool, schema_in: str
) -> None:
    """Check the arguments of `propose_schemas`; raises its ConfigError."""
    require_choice("schema_in", schema_in, ("prefix", "header"))
    if len(topics) != 1 and "topic" not in columns:
        raise ConfigError(
            f"{len(topics)} topics, and no column topic that says where a row goes",
            "add a column topic, or name one topic",
            topics=topics,
        )
    require_known_columns("key", key, columns)
    if len(key) > 1 and not avro_key:
        raise ConfigError(
            "a key of several columns is Avro",
            "pass avro_key=True, or key=['<one column>']",
            parameter="key",
            columns=tuple(key),
        )


def _values(columns: Sequence[str]) -> list[str]:
    return [name for name in columns if name not in _OWN]


def _encoder(columns: T.StructType, part: Part, key: Sequence[str], schema: Any) -> Encoder:  # noqa: ANN401
    names = _values(columns.names) if part == "value" else key
    return avro_encoding.encoder_for(T.StructType([columns[name] for name in names]), schema)


def _record_name(topic: str) -> str:
    parts = "".join(c if c.isascii() and c.isalnum() else " " for c in topic).split()
    name = "".join(part[0].upper() + part[1:] for part in parts)
    return name if name and not name[0].isdigit() else f"Topic{name}"


def _parsed(schema: Mapping[str, Any] | str) -> Any:  # noqa: ANN401 (Avro's JSON)
    if not isinstance(schema, str):
        return dict(schema)
    try:
        parsed = json.loads(schema)
    except ValueError:
        raise ConfigError(
            "the schema is no JSON", "pass the schema of an Avro record", parameter="schema"
        ) from None
    return cast("dict[str, Any]", parsed)
