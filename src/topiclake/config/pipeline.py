"""The configuration of a pipeline: the topics, how records are decoded, and the tables."""

from __future__ import annotations

import json
import logging
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from topiclake.config import table_name
from topiclake.config.changes import ChangeSettings, as_list
from topiclake.config.source import SourceSettings, Text
from topiclake.config.table_name import TOPIC
from topiclake.reasons import TOMBSTONE

_LOG = logging.getLogger(__name__)

#: Suffix of a table's name or path for its quarantine.
QUARANTINE = "_quarantine"
#: Suffix of a quarantine's name or path for the claims of replays.
REPLAYS = "_replays"


def _as_mapping(value: object) -> object:
    """Accept JSON, as a parameter has it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('must be JSON such as {"delta.appendOnly": "true"}') from None


def _check_trigger(value: str) -> str:
    if value != "availableNow" and not re.fullmatch(r"\d+ (second|minute|hour)s?", value):
        raise ValueError("must be availableNow or an interval such as '10 seconds'")
    return value


Trigger = Annotated[str, AfterValidator(_check_trigger)]


def _check_path(value: str) -> str:
    if table_name.is_name(value):
        raise ValueError(f"is the name of a table, not a path; set table: {value}")
    return value


class PipelineSettings(SourceSettings):
    """One topic into one table, or several, each into its own."""

    #: PERMISSIVE puts bad records into the quarantine. FAILFAST ends the query at the first one; use it when
    #: no record may be missing from the table.
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE"
    #: `availableNow` reads what Kafka holds and ends. Use an interval such as `10 seconds` for a query that
    #: runs all the time.
    trigger: Trigger = "availableNow"
    #: `append`: each record is a row. `upsert`: each record changes the row of its key, as `changes` says
    #: (docs/changes.md).
    apply: Literal["append", "upsert"] = "append"
    #: The temp view that shows the table to SQL.
    view: Annotated[str, Field(pattern=r"^\w+$")]
    #: The Delta table in a catalog: `schema.table` or `catalog.schema.table`. With `{topic}`, each topic
    #: has a table. It needs no path. Either `table` or `table_path` is set.
    table: Annotated[str, AfterValidator(table_name.check_name)] | None = None
    #: Where the Delta table is: below the mount point, or an address. With `{topic}`, each topic has a
    #: table.
    table_path: Annotated[Text, AfterValidator(_check_path)] | None = None
    #: Where the query keeps its offsets: one checkpoint for each table.
    checkpoint_path: Text
    #: Where a query starts whose checkpoint and table disagree. `checkpoint`: where the checkpoint ends.
    #: `table`: where table, quarantine and paused ranges end. `restart`: at `starting_offsets`. None: the
    #: query does not start. If checkpoint and table agree, the setting has no effect.
    resume: Literal["checkpoint", "table", "restart"] | None = None
    #: The format of values; text is one column `value STRING`. Values of avro, protobuf and json_schema (JSON
    #: with a JSON Schema) name schemas of the registry.
    value_format: Literal["avro", "json", "json_schema", "protobuf", "text", "custom"] = "avro"
    #: The columns of JSON and custom values as DDL; a NOT NULL column is required.
    value_schema: Text | None = None
    #: Of custom values: `module:function`, see `topiclake.deserializer`, or the name of a Kafka
    #: `Deserializer` class in a jar that Spark has.
    deserializer: Annotated[str, Field(pattern=r"^[\w.]+:\w+$|^[\w.$]+$")] | None = None
    #: The configuration of such a class, as a consumer's properties. Query plans show it: no secrets here.
    deserializer_config: dict[str, str] = Field(default_factory=dict)
    #: Spark's pattern for TIMESTAMP fields of JSON values. Set it when they are not ISO 8601.
    timestamp_format: Text | None = None
    #: How the producer's serializer names subjects (`subject.name.strategy` of Confluent's).
    subject_strategy: Literal["topic_name", "record_name", "topic_record_name"] = "topic_name"
    #: Full names of the records in the topic, for the strategies that name subjects by them. A record that is
    #: not listed is looked up by its schema id. For protobuf: the messages that values may be.
    record_names: Annotated[tuple[Text, ...], BeforeValidator(as_list)] = ()
    #: How values name their schema: `confluent` (an id in front or in a header), or `plain` (values contain
    #: no schema id). Use `plain` for producers without a registry's serializer.
    avro_form: Literal["confluent", "plain"] = "confluent"
    #: Versions of the subject that plain values may have; empty: all. A value is of the newest that it fits.
    #: List them when old versions are no longer written, because each further version costs another trial.
    plain_versions: Annotated[tuple[Annotated[int, Field(gt=0)], ...], BeforeValidator(as_list)] = ()
    #: Whether a column becomes wider (INT to BIGINT) for a version that needs it; else such a version does
    #: not fit. Set it when all readers of the table know Delta's type widening: others cannot read it any
    #: more.
    type_widening: bool = False
    #: The format of keys, for the column `_key`. `none`: the table has no such column. Keys of avro,
    #: json_schema and protobuf name schemas of the subject `<topic>-key`. Set it when keys hold more than
    #: values.
    key: Literal["none", "binary", "string", "avro", "json", "json_schema", "protobuf"] = "none"
    #: The columns of JSON keys as DDL; a NOT NULL column is required.
    key_schema: Text | None = None
    #: Whether rows have `_headers ARRAY<STRUCT<key STRING, value BINARY>>`. Set it when producers put
    #: information there.
    headers_column: bool = False
    #: Whether rows have `_kafka`. Without it nothing can be audited; only a table with fixed columns wants
    #: that.
    kafka_column: bool = True
    #: Fields of `_kafka`; each further one costs about a tenth of the throughput. Several pipelines that
    #: share a table need `topic` for an audit.
    kafka_fields: Annotated[
        tuple[Literal["partition", "offset", "topic", "timestamp"], ...], BeforeValidator(as_list)
    ] = ("partition", "offset")
    #: Whether records that wait in quarantine for a schema go to the table once the registry knows it. Set it
    #: to false when a person decides about each replay.
    automatic_replay: bool = True
    #: The handling of a record without a value. Use `skip` for a compacted topic, where it deletes a key.
    #: `keep` belongs to `apply: upsert`, and to `read_values`, which returns a row of nulls with its `_key`.
    tombstones: Literal["quarantine", "skip", "keep"] = "quarantine"
    #: A consumer group whose offsets are committed after each micro-batch. Set it when Kafka's own tools show
    #: or alert on the lag.
    consumer_group: Text | None = None
    #: Table properties of Delta and Parquet, set when the table is created: retention, clustering,
    #: compression.
    table_properties: Annotated[dict[str, str], BeforeValidator(_as_mapping)] = Field(default_factory=dict)
    #: How records change rows. Set it with `apply: upsert`.
    changes: ChangeSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_changes(cls, given: Any) -> Any:  # noqa: ANN401 (whatever a file holds)
        """Set `changes` of a pipeline with `apply: upsert`, whose defaults may be enough."""
        if isinstance(given, dict) and given.get("apply") == "upsert":
            return {**given, "changes": given.get("changes") or {}}
        return given

    @model_validator(mode="before")
    @classmethod
    def _accept_decode_key(cls, given: Any) -> Any:  # noqa: ANN401 (whatever a file holds)
        """Accept `decode_key`, the former name of `key: avro`."""
        if not isinstance(given, dict) or "decode_key" not in given:
            return given
        others = {name: value for name, value in given.items() if name != "decode_key"}
        word = str(given["decode_key"]).lower()
        if word not in ("true", "false") or "key" in others:
            raise ValueError("decode_key is the former name of key: avro; set key alone")
        key = "avro" if word == "true" else "none"
        _LOG.warning("decode_key: %s is read as key: %s; set key", word, key)
        return others | {"key": key}

    @model_validator(mode="after")
    def _check_together(self) -> PipelineSettings:
        if (self.table is None) == (self.table_path is None):
            raise ValueError("needs either table or table_path")
        if self.has_several_topics and not self.has_table_for_each:
            raise ValueError(f"{self._key} must hold {TOPIC}: each of several topics has a separate table")
        if self.table is not None and self.topic_pattern is None:
            self._check_named_topics(self.table)
        if (self.value_format in ("json", "custom")) != (self.value_schema is not None):
            raise ValueError("value_schema belongs to value_format json or custom, which needs it")
        if (self.value_format == "custom") != (self.deserializer is not None):
            raise ValueError("deserializer belongs to value_format custom, which needs it")
        if self.deserializer_config and ":" in (self.deserializer or ":"):
            raise ValueError("deserializer_config belongs to a deserializer that is a Java class")
        if not self.is_registered and self.has_table_for_each:
            raise ValueError(f"{TOPIC} in {self._key} belongs to value_format avro, json_schema or protobuf")
        if (self.key == "json") != (self.key_schema is not None):
            raise ValueError("key_schema belongs to key json, which needs it")
        if self.has_registered_key and not self.is_registered:
            raise ValueError(f"key {self.key} belongs to value_format avro, json_schema or protobuf")
        if self.value_format != "avro" and self.avro_form != "confluent":
            raise ValueError("avro_form belongs to value_format avro")
        if self.value_format in ("json_schema", "protobuf") and self.timestamp_format is not None:
            raise ValueError("timestamp_format belongs to value_format json or custom")
        if self._table_property("delta.setTransactionRetentionDuration") is not None:
            raise ValueError(
                "table_properties must not hold delta.setTransactionRetentionDuration: Delta would forget "
                "which batches the table has, and a late restart append one of them once more"
            )
        if (self.apply == "upsert") != (self.changes is not None):
            raise ValueError("changes belongs to apply upsert")
        if self.changes is not None:
            self._check_changes(self.changes)
        return self

    def _check_changes(self, changes: ChangeSettings) -> None:
        has_key_fields = self.has_registered_key or self.key == "json"
        if not changes.keys and not has_key_fields:
            raise ValueError(
                "apply upsert needs changes.keys, or a key of avro, json, json_schema or protobuf, whose "
                "fields are the keys"
            )
        if changes.envelope == "none" and changes.deletes == TOMBSTONE and not has_key_fields:
            raise ValueError(
                "changes.deletes tombstone needs a key of avro, json, json_schema or protobuf, since "
                "a tombstone has no value; set key, or changes.deletes"
            )
        of_value = [name for name in changes.order if not name.startswith("_")]
        if changes.envelope == "none" and changes.deletes == TOMBSTONE and of_value:
            raise ValueError(
                f"changes.order {', '.join(of_value)} contradicts changes.deletes tombstone, which has no "
                "value; set a condition as changes.deletes"
            )
        if not (self.kafka_column and {"partition", "offset"} <= set(self.kafka_fields)):
            raise ValueError("apply upsert needs partition and offset in kafka_fields, which order changes")
        if "tombstones" in self.model_fields_set and changes.keeps_tombstones != (self.tombstones == "keep"):
            raise ValueError(f"tombstones {self.tombstones} contradicts changes.deletes {changes.deletes}")
        if (self._table_property("delta.appendOnly") or "").lower() == "true":
            raise ValueError("table_properties delta.appendOnly contradicts apply upsert, which updates rows")
        if self.resume == "table":
            raise ValueError("resume table belongs to apply append; set resume: restart")

    def _table_property(self, name: str) -> str | None:
        """Return the value of a table property, whose name has no case for Delta."""
        properties = {each.lower(): value for each, value in self.table_properties.items()}
        return properties.get(name.lower())

    def _check_named_topics(self, table: str) -> None:
        for topic in self.topics:
            if not table_name.is_allowed(table_name.for_topic(table, topic)):
                raise ValueError(
                    f"topic {topic} has a dot, which no catalog allows in a table; set table_path"
                )
        if len({topic.lower() for topic in self.topics}) < len(self.topics):
            raise ValueError("topics differ only in case, which catalogs ignore; set table_path")

    @property
    def keeps_tombstones(self) -> bool:
        """Whether a record without a value is a row of nulls."""
        return self.tombstones == "keep" or (self.changes is not None and self.changes.keeps_tombstones)

    @property
    def orders_changes_by_offset(self) -> bool:
        """Whether offsets alone order the changes of a partition. Those of another topic start again at 0."""
        return self.changes is not None and set(self.changes.order) <= {"_kafka.partition", "_kafka.offset"}

    @property
    def is_registered(self) -> bool:
        """Whether values name a schema of the registry."""
        return self.value_format in ("avro", "json_schema", "protobuf")

    @property
    def has_registered_key(self) -> bool:
        """Whether keys name a schema of the registry."""
        return self.key in ("avro", "json_schema", "protobuf")

    @property
    def has_table_for_each(self) -> bool:
        """Whether each topic has a separate table, even if there is only one topic for now."""
        return TOPIC in self.location

    @property
    def location(self) -> str:
        """The table: its name, or its path."""
        return self.table or self.table_path or ""

    @property
    def _key(self) -> str:
        """The key that has the location."""
        return "table_path" if self.table is None else "table"

    @property
    def paused_path(self) -> str:
        """The table of the ranges that paused topics have missed, next to the checkpoint."""
        return f"{self.checkpoint_path.rstrip('/')}_paused"

    @property
    def schemas_path(self) -> str:
        """The table of the schema decisions for `read_values`, next to the checkpoint."""
        return f"{self.checkpoint_path.rstrip('/')}_schemas"

    def subjects(self, part: Literal["value", "key"], *, topic: str) -> tuple[str, ...]:
        """Return the subjects of `topic` whose versions are known without a look at the records."""
        if part == "key" or self.subject_strategy == "topic_name":
            return (f"{topic}-{part}",)
        if self.subject_strategy == "record_name":
            return self.record_names
        return tuple(f"{topic}-{name}" for name in self.record_names)

    @property
    def quarantine_path(self) -> str:
        """The table of the rejected records, next to the pipeline's table."""
        return table_name.suffixed(self.location, QUARANTINE)
