"""The schemas that the records of a topic may have, and whether their rows can be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.config.settings import Settings
from topiclake.config.table_name import TOPIC
from topiclake.errors import IngestError, SubjectNotFoundError
from topiclake.formats.codec import OWN, Codec, Codecs, ImpossibleSchemaError, SchemaVersion
from topiclake.formats.declared import DeclaredFormat
from topiclake.formats.registered import AVRO, Format, format_of, key_format_of
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import Part, SchemaKey
from topiclake.sources.layout import KEY_COLUMN, Layout


@dataclass(frozen=True)
class TopicSchemas:
    """The source of a topic's schemas, and the columns that rows have in addition to theirs.

    All of it can be pickled, for Spark Connect.

    Attributes:
        registry: The registry that holds them.
        subjects: Subjects with the schemas, by part; without `key` keys are not decoded.
        layout: The rows' columns in addition to those of the schemas.
        needs_one_subject: Whether one of the value's subjects is enough: each topic has some of them.
        plain_versions: Versions that plain values may have, empty for all; None if values name theirs.
        format: The type of the schemas of values.
        key_format: The type of the schemas of keys.
        declared_key: The format of keys that name no schema; None if such keys are not decoded.
    """

    registry: SchemaRegistry
    subjects: Mapping[Part, tuple[str, ...]]
    layout: Layout
    needs_one_subject: bool = False
    plain_versions: tuple[int, ...] | None = None
    format: Format = AVRO
    key_format: Format = AVRO
    declared_key: DeclaredFormat | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> TopicSchemas:
        """Return the schemas of a configured pipeline."""
        pipeline = settings.pipeline
        name = TOPIC if pipeline.has_table_for_each else pipeline.topic
        parts: list[Part] = ["value", "key"] if pipeline.has_registered_key else ["value"]
        return cls(
            SchemaRegistry.from_settings(settings.schema_registry),
            {part: pipeline.subjects(part, topic=name) for part in parts},
            Layout.from_settings(pipeline),
            needs_one_subject=pipeline.subject_strategy == "topic_record_name",
            plain_versions=pipeline.plain_versions if pipeline.avro_form == "plain" else None,
            format=format_of(pipeline),
            key_format=key_format_of(pipeline),
            declared_key=DeclaredFormat.of_key(pipeline),
        )

    def for_topic(self, topic: str) -> TopicSchemas:
        """Return those of one topic: its name replaces the placeholder in the names of subjects."""
        subjects = {
            part: tuple(name.replace(TOPIC, topic) for name in names) for part, names in self.subjects.items()
        }
        return replace(self, subjects=subjects)

    def waiting(self, settings: SchemaRegistrySettings) -> TopicSchemas:
        """Return the same with a registry as micro-batches use it, for which no person waits."""
        return replace(self, registry=self.registry.waiting(settings))

    def format_of(self, part: Part) -> Format:
        """Return the type of the schemas of a part."""
        return self.format if part == "value" else self.key_format

    def listed(self, part: Part, *, refresh: bool) -> dict[SchemaKey, SchemaVersion]:
        """Return the versions of a part's subjects, oldest first, by id and, where they have one, by GUID.

        Args:
            part: Of the records.
            refresh: Whether the registry is asked even if its last list is not old yet.

        Raises:
            SchemaRegistryError: The registry cannot be used, or lacks a subject.
        """
        schemas: dict[SchemaKey, SchemaVersion] = {}
        for subject in self.subjects[part]:
            for version in self.registry.versions(subject, refresh=refresh):
                for key in (version.schema_id, version.guid):
                    if key is not None:
                        schemas.setdefault(key, version)
        return schemas

    def unite(
        self,
        schemas_by_part: Mapping[Part, Mapping[SchemaKey, SchemaVersion]],
        accepts: Callable[[Part], Callable[[str], str | None]],
    ) -> Codecs:
        """Unite schemas, oldest first, for a plan that is fixed.

        Args:
            schemas_by_part: The schemas of each part.
            accepts: Returns for a part a function that says why rows of a reader schema are not possible.
        """
        codecs: dict[Part, Codec] = {
            part: self.format_of(part).codec(schemas, accepts(part), None)
            for part, schemas in schemas_by_part.items()
        }
        return Codecs(codecs["value"], codecs.get("key"), declared_key=self.declared_key)

    def require_usable(self, codecs: Codecs) -> None:
        """Raise an IngestError if values' subjects have versions, and none of them can be used."""
        if not codecs.value.writers and codecs.value.refused:
            details = "; ".join(
                f"schema {key}: {detail}" for key, (_, detail) in codecs.value.refused.items()
            )
            raise IngestError(
                f"no version of {', '.join(self.subjects['value'])} can be used ({details})",
                "register a version that fits, or give the pipeline another table_path",
                subjects=tuple(self.subjects["value"]),
                detail=details,
            )

    def refusal(
        self,
        spark: SparkSession,
        reader: str,
        part: Part,
        columns_refusal: Callable[[StructType], str | None],
    ) -> str | None:
        """Say why nothing can be decoded with a reader schema and stored; None: it can.

        Args:
            spark: The session.
            reader: The schema of the rows.
            part: The part of records that is decoded with it.
            columns_refusal: Says why the existing table or files cannot take columns.
        """
        schema_format = self.format_of(part)
        try:
            event = schema_format.event_type(spark, reader)
        except ImpossibleSchemaError as error:
            return str(error)
        if part == "key":
            return columns_refusal(StructType().add(KEY_COLUMN, event))
        if not schema_format.has_columns(reader) or not isinstance(event, StructType):
            return columns_refusal(StructType().add("value", event))
        for name in event.names:
            if name in self.layout.columns or name.lower().startswith(OWN):
                return f"a field is called {name}, which is a name of Topiclake's own"
        return columns_refusal(event)

    def usable_plain_keys(self, codecs: Codecs) -> list[SchemaKey]:
        """Return the schemas of `plain_keys` that `codecs` decode with; empty if values name theirs."""
        if self.plain_versions is None:
            return []
        return [key for key in self.plain_keys() if key in codecs.value.writers]

    def plain_keys(self) -> list[SchemaKey]:
        """Return the schemas that plain values may have, oldest first: `plain_versions` of the subjects.

        Raises:
            SubjectNotFoundError: A subject, or one of the versions, is not there.
            SchemaRegistryError: The registry cannot be used.
        """
        versions = self.plain_versions or ()
        listed = [
            version for subject in self.subjects["value"] for version in self.registry.versions(subject)
        ]
        if missing := set(versions) - {version.version for version in listed}:
            raise SubjectNotFoundError(
                f"{', '.join(self.subjects['value'])} has no version {', '.join(map(str, sorted(missing)))}; "
                f"it has: {', '.join(str(version.version) for version in listed)}",
                "fix plain_versions, or leave it empty for all",
                subjects=tuple(self.subjects["value"]),
                missing=tuple(sorted(missing)),
                allowed=tuple(version.version for version in listed),
            )
        return [version.schema_id for version in listed if not versions or version.version in versions]
