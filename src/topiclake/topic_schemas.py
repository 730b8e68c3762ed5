"""Which schemas the records of a topic may have, and whether rows of them can be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topiclake import avro, avro_event, value_formats
from topiclake.avro import Codecs
from topiclake.errors import IngestError, SubjectNotFoundError
from topiclake.layout import KEY_COLUMN, Layout
from topiclake.schema_registry import SchemaRegistry
from topiclake.value_formats import Format
from topiclake.wire_format import Part, SchemaKey


def require_usable(codecs: Codecs, subjects: Sequence[str]) -> None:
    """Raise an IngestError where values' subjects have versions, and none of them can be used."""
    if not codecs.value.writers and codecs.value.refused:
        why = "; ".join(f"schema {key}: {detail}" for key, (_, detail) in codecs.value.refused.items())
        raise IngestError(
            f"no version of {', '.join(subjects)} can be used ({why})",
            "register a version that fits, or give the pipeline another table_path",
            subjects=tuple(subjects),
            detail=why,
        )


def refusal(
    spark: SparkSession,
    reader: str,
    part: Part,
    layout: Layout,
    of_columns: Callable[[StructType], str | None],
    of: Format,
) -> str | None:
    """Say why nothing can be decoded with a reader schema and stored; None: it can.

    Args:
        spark: The session.
        reader: The schema of the rows.
        part: What is decoded with it.
        layout: The rows' other columns.
        of_columns: Says why what is there already cannot take columns.
        of: What kind of schema it is.
    """
    try:
        event = of.event_type(spark, reader)
    except avro_event.ImpossibleSchemaError as error:
        return str(error)
    if part == "key":
        return of_columns(StructType().add(KEY_COLUMN, event))
    is_row = of.is_row(reader)
    columns = value_formats.columns(event, is_row=is_row)
    taken = [name for name in columns.names if name in layout.columns or name.lower().startswith(avro.OWN)]
    if taken and is_row:
        return f"a field is called {taken[0]}, which is a name of Topiclake's own"
    return of_columns(columns)


def usable_plain_keys(
    registry: SchemaRegistry,
    subjects: Mapping[Part, Sequence[str]],
    versions: Sequence[int] | None,
    codecs: Codecs,
) -> list[SchemaKey]:
    """Return the schemas of `plain_keys` that `codecs` decode with; none if `versions` is None."""
    if versions is None:
        return []
    return [key for key in plain_keys(registry, subjects, versions) if key in codecs.value.writers]


def plain_keys(
    registry: SchemaRegistry, subjects: Mapping[Part, Sequence[str]], versions: Sequence[int]
) -> list[SchemaKey]:
    """Return the schemas that plain values may have, oldest first: `versions` of the subjects, empty for all.

    Raises:
        SubjectNotFoundError: A subject, or one of the versions, is not there.
        SchemaRegistryError: The registry cannot be used.
    """
    known = [version for subject in subjects["value"] for version in registry.versions(subject)]
    if missing := set(versions) - {version.version for version in known}:
        raise SubjectNotFoundError(
            f"{', '.join(subjects['value'])} has no version {', '.join(map(str, sorted(missing)))}; "
            f"it has: {', '.join(str(version.version) for version in known)}",
            "mend plain_versions, or leave it empty for all",
            subjects=tuple(subjects["value"]),
            missing=tuple(sorted(missing)),
            allowed=tuple(version.version for version in known),
        )
    return [version.schema_id for version in known if not versions or version.version in versions]
