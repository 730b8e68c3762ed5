"""Values that name schemas of the registry, in a plan that is fixed when its query starts.

Nothing is looked up for a record within such a plan. So one whose schema was not known at the start ends the
query, and the next start knows it: whether a record is left out never depends on when its schema came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from topiclake import delta, quarantine, rows, schemas
from topiclake.avro import Codecs, Registered
from topiclake.errors import NewSchemaError
from topiclake.micro_batch import Target, writer_name
from topiclake.rows import Layout
from topiclake.schema_registry import SchemaRegistry
from topiclake.value_formats import AVRO, Format
from topiclake.wire_format import Part, SchemaKey


def codecs_of_today(
    spark: SparkSession,
    registry: SchemaRegistry,
    subjects: Mapping[Part, Sequence[str]],
    layout: Layout,
    of: Format,
) -> Codecs:
    """Return what the versions of the subjects mean, as the registry lists them now.

    Args:
        spark: The session.
        registry: Where they come from.
        subjects: Those of values, and of keys where they are decoded.
        layout: The rows' columns beside those of the schemas.
        of: What the schemas of values are; those of keys are Avro.

    Raises:
        SchemaRegistryError: The registry cannot be used, or lacks a subject.
        IngestError: No version can be used.
    """
    codecs = {}
    for part, names in subjects.items():
        of_part = of if part == "value" else AVRO
        accepts = partial(_refusal, spark, part, layout, of_part)
        codecs[part] = of_part.codec(_listed(registry, names), accepts)
    found = Codecs(codecs["value"], codecs.get("key"))
    schemas.require_usable(found, subjects["value"])
    return found


def _listed(registry: SchemaRegistry, subjects: Sequence[str]) -> dict[SchemaKey, Registered]:
    known: dict[SchemaKey, Registered] = {}
    for subject in subjects:
        for version in registry.versions(subject, refresh=True):
            for key in (version.schema_id, version.guid):
                if key is not None:
                    known.setdefault(key, version)
    return known


def _refusal(spark: SparkSession, part: Part, layout: Layout, of: Format, reader: str) -> str | None:
    return schemas.refusal(spark, reader, part, layout, _any_columns, of)


def _any_columns(_: StructType) -> None:
    """Refuse no columns: there is no table that must take them."""


def right(records: DataFrame, codecs: Codecs, layout: Layout, mode: str) -> DataFrame:
    """Return the rows of what is right; the plan raises where a schema is not known.

    In mode FAILFAST it raises at each record that is not right.
    """
    judged = rows.or_start_again(rows.judge(records, codecs, layout), codecs)
    if mode == "FAILFAST":
        judged = rows.or_fail(judged, codecs, layout, is_static=True)
    return rows.placed(rows.flat(judged, codecs, layout))


def write_left(target: Target, codecs: Codecs, checkpoint: str, records: DataFrame, batch_id: int) -> None:
    """Write what `right` leaves out to the quarantine, in a query with a `checkpoint` of its own.

    Raises:
        NewSchemaError: The registry knows a schema that was not known at the start; nothing is written.
        SchemaRegistryError: The registry cannot be used; nothing is written.
    """
    spark = records.sparkSession
    left = rows.judge(records, codecs, target.layout).where(rows.is_left(codecs, target.layout))
    tally = rows.tally(records.select(*quarantine.RECORD_COLUMNS), codecs, target.layout)
    if not tally.reasons.keys() - {"ok"}:
        return
    unknown: dict[Part, set[SchemaKey]] = {}
    for part, late in tally.late.items():
        found, unknown[part], _ = target.registry.by_ids(late, rows.KEYS_OF_A_BATCH)
        if found:
            ids = ", ".join(map(str, found))
            raise NewSchemaError(
                f"records of pipeline {target.pipeline} have schemas ({ids}) that were registered after its "
                "query had started; nothing of them is lost",
                "start it again, and the queries of read_values with it",
                pipeline=target.pipeline,
                part=part,
                schema_ids=tuple(found),
            )
    bad = quarantine.explained(left, codecs, unknown, ask_python="undecodable" in tally.reasons)
    delta.append_once(
        quarantine.quarantined(bad, pipeline=target.pipeline, batch_id=batch_id),
        target.quarantine,
        writer=writer_name(replace(target, checkpoint=checkpoint), spark),
        batch_id=batch_id,
        commit={"pipeline": target.pipeline, "run": target.run},
    )
