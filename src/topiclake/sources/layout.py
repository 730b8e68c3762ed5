"""The columns that a row has in addition to those of its value."""

from __future__ import annotations

from dataclasses import dataclass

from topiclake.config.pipeline import PipelineSettings

#: The column that says where in Kafka a row came from: `STRUCT<partition INT, offset BIGINT>`.
KAFKA_COLUMN = "_kafka"
KEY_COLUMN = "_key"
HEADERS_COLUMN = "_headers"
#: Whether the record has no value: `BOOLEAN`, of a pipeline that keeps tombstones.
TOMBSTONE_COLUMN = "_tombstone"


@dataclass(frozen=True)
class Layout:
    """The columns that a row has in addition to those of its schema, and the handling of tombstones.

    Attributes:
        kafka: Fields of `_kafka`, of `partition, offset, topic, timestamp`; empty: no such column.
        key: The format of the key, for `_key` (`PipelineSettings.key`); `none`: no such column.
        headers: Whether `_headers ARRAY<STRUCT<key STRING, value BINARY>>` is kept.
        skips_tombstones: Whether a record without a value is skipped.
        keeps_tombstones: Whether it is a row of nulls. Else, unless it is skipped, it goes to quarantine.
    """

    kafka: tuple[str, ...] = ("partition", "offset")
    key: str = "none"
    headers: bool = False
    skips_tombstones: bool = False
    keeps_tombstones: bool = False

    @classmethod
    def from_settings(cls, pipeline: PipelineSettings) -> Layout:
        """Return the columns that a configuration asks for."""
        return cls(
            kafka=pipeline.kafka_fields if pipeline.kafka_column else (),
            key=pipeline.key,
            headers=pipeline.headers_column,
            skips_tombstones=pipeline.tombstones == "skip",
            keeps_tombstones=pipeline.keeps_tombstones,
        )

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are no fields of the schema."""
        requested = (
            (KAFKA_COLUMN, self.kafka),
            (KEY_COLUMN, self.key_expression),
            (HEADERS_COLUMN, self.headers),
            (TOMBSTONE_COLUMN, self.keeps_tombstones),
        )
        return [name for name, is_requested in requested if is_requested]

    @property
    def key_expression(self) -> str | None:
        """The expression in SQL that makes `_key` of a decoded record; None: no such column."""
        return {"none": None, "binary": "key"}.get(self.key, "decoded_key.event")
