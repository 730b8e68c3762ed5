"""The schemas that decode a micro-batch: those of the subjects, and those that were looked up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topiclake.delta import catalog, evolution
from topiclake.delta import table as delta
from topiclake.errors import IngestError, SubjectNotFoundError
from topiclake.formats.avro.stored_reader import StoredReaderError
from topiclake.formats.codec import Codec, Codecs, SchemaVersion
from topiclake.ingest.targets import Target
from topiclake.kafka import source as kafka_source
from topiclake.schema_registry.registry import RegisteredSchema
from topiclake.schema_registry.wire_format import Part, SchemaKey
from topiclake.sources import registered_rows
from topiclake.sources.layout import KAFKA_COLUMN, KEY_COLUMN
from topiclake.sources.table_snapshot import NO_TABLE, TableSnapshot, read_snapshot
from topiclake.sources.topic_schemas import TopicSchemas

_log = logging.getLogger(__name__)

#: Prefix of the table properties that keep the reader schema of each part (`stored_reader`).
READER_PROPERTY = "topiclake.reader."

#: Number of the newest writers of a part that the plan of a micro-batch has. Those that records have
#: named come in addition. Each is a branch of the plan.
PLANNED_WRITERS = 32

BeforeTable = Callable[[], None]


@dataclass
class BatchSchemas:
    """The schemas of one topic that one start of a query knows.

    Attributes:
        target: The tables of the topic.
        before_table: Last action before the table is created; it may raise an error.
    """

    target: Target
    before_table: BeforeTable | None = None
    #: The table's columns when it was last read.
    table_columns: StructType = field(default_factory=StructType)
    _looked_up: dict[Part, dict[SchemaKey, RegisteredSchema]] = field(default_factory=dict)
    #: The schemas that records have named.
    _named: dict[Part, set[SchemaKey]] = field(default_factory=dict)
    _has_named_all: bool = False
    #: The codecs of all known schemas, and of those of the next plan.
    _codecs: Codecs | None = None
    _current: Codecs | None = None
    _keys: object = None
    _warned: set[tuple[Part, SchemaKey]] = field(default_factory=set)

    @property
    def source(self) -> TopicSchemas:
        """Source of the schemas."""
        return self.target.schemas

    def current(self, spark: SparkSession) -> Codecs:
        """Return the current codecs; create the table, or prepare it for new columns, if needed.

        Of many schemas, they decode `PLANNED_WRITERS` newest ones and those that `look_up` was asked for. A
        record of another one is late, as one of an unknown schema is.

        Raises:
            SchemaRegistryError: The registry cannot be used.
            IngestError: The table would have no columns, or no version can be used for a new table.
        """
        by_part = {part: self._known_schemas(part) for part in self.source.subjects}
        keys = {part: list(schemas) for part, schemas in by_part.items()}
        if self._codecs is None or keys != self._keys:
            # Later, the table is no longer the one of the snapshot.
            snapshot, self.target = self.target.snapshot, replace(self.target, snapshot=None)
            snapshot = snapshot if snapshot is not None and snapshot.is_fresh else None
            self._codecs, self._keys = self._prepared(spark, by_part, snapshot), keys
            self._current = None
        if self._current is None:
            parts = {part: self._for_plan(part, codec) for part, codec in self._codecs.parts.items()}
            is_all = parts == self._codecs.parts
            current = replace(self._codecs, value=parts["value"], key=parts.get("key"))
            self._current = self._codecs if is_all else current
        return self._current

    def _for_plan(self, part: Part, codec: Codec) -> Codec:
        """Return the codec with the writers of a micro-batch's plan."""
        # Plain values name no schema, so each may be of any version.
        is_plain = part == "value" and self.source.plain_versions is not None
        if is_plain or self._has_named_all or len(codec.writers) <= PLANNED_WRITERS:
            return codec
        named = self._named.get(part, set()) | self._looked_up.get(part, {}).keys()
        planned = {writer for key, writer in codec.writers.items() if key in named}
        listed = self._listed(part).values()
        for versions in listed:
            newest = dict.fromkeys(codec.writers[key] for key in reversed(versions) if key in codec.writers)
            planned.update(islice(newest, max(1, PLANNED_WRITERS // len(listed))))
        return replace(
            codec, writers={key: writer for key, writer in codec.writers.items() if writer in planned}
        )

    def planned(self, spark: SparkSession) -> tuple[Codecs, TableSnapshot]:
        """Return the codecs that `current` would return, and the state of the table, without changes to it.

        Raises:
            SchemaRegistryError: The registry cannot be used.
        """
        snapshot = read_snapshot(spark, self.target.table) or NO_TABLE
        return self._united(
            spark, {part: self._known_schemas(part) for part in self.source.subjects}, snapshot
        ), snapshot

    def plain(self, codecs: Codecs) -> list[SchemaKey]:
        """Return the schemas of plain values, oldest first; empty if values contain a schema id."""
        return self.source.usable_plain_keys(codecs)

    def refresh_plain(self) -> None:
        """Read the versions of plain values that were registered since the list was read."""
        if self.source.plain_versions is not None:
            for subject in self.source.subjects["value"]:
                self.source.registry.versions(subject, refresh=True)

    def pinned(
        self, spark: SparkSession, keys: Mapping[Part, Sequence[SchemaKey]], constraints: Mapping[str, str]
    ) -> Codecs | None:
        """Return the codecs of an earlier attempt, or None if one of its schemas can no longer be used."""
        self.look_up({part: set(keys[part]) for part in self.source.subjects})
        by_part = {part: self._known_schemas(part) for part in self.source.subjects}
        if any(key not in by_part[part] for part in self.source.subjects for key in keys[part]):
            return None
        codecs = self._prepared(
            spark, {part: {key: by_part[part][key] for key in keys[part]} for part in self.source.subjects}
        )
        if codecs.keys != {part: list(keys[part]) for part in self.source.subjects}:
            return None
        return replace(codecs, table=self.table_columns, constraints=constraints)

    def look_up(
        self, keys: Mapping[Part, Collection[SchemaKey]], *, is_complete: bool = True
    ) -> dict[Part, set[SchemaKey]]:
        """Add schemas to the current codecs, and return those that the registry does not know.

        The registry is asked for schemas that are not known yet. The result lacks keys for which no request
        was made because too many others were unknown.

        Args:
            keys: Schemas that records name, by part.
            is_complete: Whether these are all of them; else the codecs get all known schemas.
        """
        unknown: dict[Part, set[SchemaKey]] = {}
        if not is_complete:
            self._has_named_all, self._current = True, None
        for part, part_keys in keys.items():
            existing, named = self._known_schemas(part), self._named.setdefault(part, set())
            if not named.issuperset(existing.keys() & part_keys):
                named.update(existing.keys() & part_keys)
                self._current = None
            missing = [key for key in part_keys if key not in existing]
            schemas, unknown[part], _ = self.source.registry.by_ids(
                missing, subjects=self.source.subjects[part]
            )
            self._looked_up.setdefault(part, {}).update(schemas)
        return unknown

    def forget(self) -> None:
        """Read the table again next time, because another writer has changed it."""
        self._codecs = None

    def _known_schemas(self, part: Part) -> dict[SchemaKey, SchemaVersion]:
        schemas: dict[SchemaKey, SchemaVersion] = {}
        for versions in self._listed(part).values():
            schemas |= versions
        return schemas | self._looked_up.get(part, {})

    def _listed(self, part: Part) -> dict[str, dict[SchemaKey, SchemaVersion]]:
        """Return the versions of each subject that exists, oldest first."""
        listed: dict[str, dict[SchemaKey, SchemaVersion]] = {}
        missing: list[SubjectNotFoundError] = []
        for subject in self.source.subjects[part]:
            try:
                listed[subject] = {
                    version.schema_id: version for version in self.source.registry.versions(subject)
                }
            except SubjectNotFoundError as error:
                missing.append(error)
        if missing and not (any(listed.values()) and self.source.needs_one_subject):
            raise missing[0]
        return listed

    def _prepared(
        self,
        spark: SparkSession,
        by_part: Mapping[Part, Mapping[SchemaKey, SchemaVersion]],
        snapshot: TableSnapshot | None = None,
    ) -> Codecs:
        snapshot = snapshot or read_snapshot(spark, self.target.table) or NO_TABLE
        codecs, self.table_columns = self._united(spark, by_part, snapshot), snapshot.columns
        self._warn(codecs)
        self._prepare_table(spark, codecs, snapshot)
        return codecs

    def _united(
        self,
        spark: SparkSession,
        by_part: Mapping[Part, Mapping[SchemaKey, SchemaVersion]],
        snapshot: TableSnapshot,
    ) -> Codecs:
        accepts = partial(snapshot.refusal, may_widen=self.target.type_widening)
        if self.target.mapping is None:
            parts = {
                part: self._codec(spark, snapshot, part, schemas, accepts)
                for part, schemas in by_part.items()
            }
            codecs = Codecs(parts["value"], parts.get("key"), snapshot.columns, snapshot.constraints)
            return replace(codecs, declared_key=self.source.declared_key, comments=codecs.value.comments)
        # Decoded columns are not those of the table. The table is compared with the columns that the
        # transform, or the rules of changes, derive from a value and its key.
        key = (
            self._codec(spark, snapshot, "key", by_part["key"], lambda _: None) if "key" in by_part else None
        )
        empty_codec = self.source.format.codec({}, lambda _: None, None)
        without_value = Codecs(empty_codec, key, declared_key=self.source.declared_key)
        other_columns = registered_rows.columns(
            spark, without_value, self.source.layout, kafka_source.RECORD_SCHEMA
        )
        transformed = partial(self.target.mapping.refusal, spark, other_columns, accepts)
        value = self._codec(spark, snapshot, "value", by_part["value"], transformed)
        return replace(without_value, value=value, comments=value.comments)

    def columns(self, spark: SparkSession, codecs: Codecs) -> StructType:
        """Return the columns of the table's rows; each is nullable.

        Raises:
            IngestError: The transform cannot be applied to decoded rows.
            ConfigError: The rules of changes cannot.
        """
        decoded = self._decoded(spark, codecs)
        return decoded if self.target.mapping is None else self.target.mapping.columns(spark, decoded)

    def _decoded(self, spark: SparkSession, codecs: Codecs) -> StructType:
        return registered_rows.columns(spark, codecs, self.source.layout, kafka_source.RECORD_SCHEMA)

    def _warn(self, codecs: Codecs) -> None:
        """Log each unusable version once, as soon as the registry lists it, before records have it."""
        for part, codec in codecs.parts.items():
            for key, (reason, detail) in codec.refused.items():
                if (part, key) not in self._warned:
                    self._warned.add((part, key))
                    _log.warning(
                        "records whose %s has schema %s go to quarantine (%s): %s", part, key, reason, detail
                    )

    def _codec(
        self,
        spark: SparkSession,
        snapshot: TableSnapshot,
        part: Part,
        schemas: Mapping[SchemaKey, SchemaVersion],
        columns_refusal: Callable[[StructType], str | None],
    ) -> Codec:
        name = READER_PROPERTY + part
        accepts = partial(self.source.refusal, spark, part=part, columns_refusal=columns_refusal)
        try:
            return self.source.format_of(part).codec(schemas, accepts, snapshot.properties.get(name))
        except StoredReaderError as error:
            raise IngestError(
                f"the table property {name} of {self.target.table} is not what this version of Topiclake "
                f"writes ({error}), and without it columns could change their meaning",
                f"use the version that wrote it, or, if columns may get other names, ALTER TABLE "
                f"{catalog.identifier(self.target.table)} UNSET TBLPROPERTIES ('{name}')",
                table=self.target.table,
                property=name,
                reason="kept_reader",
            ) from None

    def _prepare_table(self, spark: SparkSession, codecs: Codecs, snapshot: TableSnapshot) -> None:
        columns = self.columns(spark, codecs)
        if not columns.fields:
            raise IngestError(
                f"no schema is known yet (subjects: {', '.join(self.source.subjects['value']) or 'none'}), "
                f"and without {KAFKA_COLUMN} the table would have no columns",
                "name the topic's records in record_names, or set kafka_column: true",
                subjects=tuple(self.source.subjects["value"]),
                reason="no_schema",
            )
        if not snapshot.columns.fields:
            self.source.require_usable(codecs)
            if self.before_table is not None:
                self.before_table()
            # Some properties name columns, and without a schema no columns are known yet.
            properties = dict(self.target.properties) if codecs.value.reader else {}
            properties |= _reader_properties(codecs)
            if self.target.changes is None:
                delta.ensure_table(spark, self.target.table, columns, properties, codecs.value.comment)
            else:
                self.target.changes.ensure(spark, self.target.table, self._decoded(spark, codecs), properties)
            return
        if self.target.mapping is not None:
            self.target.require_fit(snapshot, columns, may_widen=self.target.type_widening)
        elif codecs.key is None and KEY_COLUMN in columns.names:
            self.target.require_fit(snapshot, StructType([columns[KEY_COLUMN]]))
        changed = {
            name: text
            for name, text in _reader_properties(codecs).items()
            if snapshot.properties.get(name) != text
        }
        if needed := evolution.properties(snapshot.columns, columns) | changed:
            delta.set_properties(spark, self.target.table, needed)
        if self.target.changes is not None:
            self.target.changes.ensure(spark, self.target.table, self._decoded(spark, codecs), {})


def _reader_properties(codecs: Codecs) -> dict[str, str]:
    """Return the table properties that keep the reader schemas."""
    return {
        READER_PROPERTY + part: codec.reader_text for part, codec in codecs.parts.items() if codec.reader_text
    }
