"""Values that name schemas of the registry, in a plan that is fixed when its query starts.

Nothing is looked up for a record within such a plan. So one whose schema is neither listed nor decided ends
the query, and a later start knows what is decided: see `schema_decisions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from topiclake import delta, kafka_source, quarantine, rows, schema_decisions, topic_schemas
from topiclake.avro import Codecs, Registered
from topiclake.errors import NewSchemaError
from topiclake.layout import Layout
from topiclake.schema_decisions import Decisions
from topiclake.schema_registry import SchemaRegistry
from topiclake.targets import Target, writer_name
from topiclake.value_formats import AVRO, Format
from topiclake.wire_format import Part, SchemaKey


@dataclass(frozen=True)
class FixedSchemas:
    """What records of one start of a query may have; can be pickled, for Spark Connect.

    Attributes:
        codecs: What the schemas mean.
        decisions: What is decided of schemas that the subjects do not list.
        table: Location of the decisions.
    """

    codecs: Codecs
    decisions: Decisions = field(default_factory=Decisions)
    table: str = ""


def schemas_of_today(
    spark: SparkSession,
    registry: SchemaRegistry,
    subjects: Mapping[Part, Sequence[str]],
    layout: Layout,
    of: Format,
    table: str,
) -> FixedSchemas:
    """Return what the versions of the subjects mean, as the registry lists them now, and what is decided.

    Args:
        spark: The session.
        registry: Where they come from.
        subjects: Those of values, and of keys where they are decoded.
        layout: The rows' columns beside those of the schemas.
        of: What the schemas of values are; those of keys are Avro.
        table: Location of the decisions.

    Raises:
        SchemaRegistryError: The registry cannot be used, or lacks a subject.
        IngestError: No version can be used.
    """
    decisions = schema_decisions.read(spark, table)
    codecs = {}
    for part, names in subjects.items():
        of_part = of if part == "value" else AVRO
        accepts = partial(_refusal, spark, part, layout, of_part)
        codecs[part] = of_part.codec(_known(registry, names, decisions, part), accepts)
    found = Codecs(codecs["value"], codecs.get("key"))
    topic_schemas.require_usable(found, subjects["value"])
    return FixedSchemas(found, decisions, table)


def _known(
    registry: SchemaRegistry, subjects: Sequence[str], decisions: Decisions, part: Part
) -> dict[SchemaKey, Registered]:
    known: dict[SchemaKey, Registered] = {}
    for subject in subjects:
        for version in registry.versions(subject, refresh=True):
            for key in (version.schema_id, version.guid):
                if key is not None:
                    known.setdefault(key, version)
    wanted = sorted(decisions.known.get(part, frozenset()) - known.keys(), key=str)
    found, _, _ = registry.by_ids(wanted)
    unknown = decisions.unknown.get(part, ())
    return {key: version for key, version in (known | found).items() if key not in unknown}


def _refusal(spark: SparkSession, part: Part, layout: Layout, of: Format, reader: str) -> str | None:
    return topic_schemas.refusal(spark, reader, part, layout, _any_columns, of)


def _any_columns(_: StructType) -> None:
    """Refuse no columns: there is no table that must take them."""


def right(records: DataFrame, fixed: FixedSchemas, layout: Layout, mode: str) -> DataFrame:
    """Return the rows of what is right; the plan raises where nothing is decided of a schema.

    In mode FAILFAST it raises at each record that is not right.
    """
    codecs = fixed.codecs
    judged = rows.or_start_again(rows.judge(records, codecs, layout), codecs, fixed.decisions.unknown)
    if mode == "FAILFAST":
        judged = rows.or_fail(judged, codecs, layout, is_static=True)
    return rows.placed(rows.flat(judged, codecs, layout))


def write_left(
    target: Target, fixed: FixedSchemas, checkpoint: str, records: DataFrame, batch_id: int
) -> None:
    """Write what `right` leaves out to the quarantine, in a query with a `checkpoint` of its own.

    Schemas of which nothing is decided are asked for first, five unknown ones a minute at most; those that
    the registry is not asked for are unknown.

    Raises:
        NewSchemaError: A schema is known that was not at the start; nothing is written.
        SchemaRegistryError: The registry cannot be used; nothing is written.
    """
    spark, codecs = records.sparkSession, fixed.codecs
    left = rows.judge(records, codecs, target.layout).where(rows.is_left(codecs, target.layout))
    decisions, kafka_records = fixed.decisions, records.select(*kafka_source.RECORD_COLUMNS)
    while True:
        tally = rows.tally(kafka_records, codecs, target.layout, decisions.unknown)
        if not tally.reasons.keys() - {"ok"}:
            return
        if not any(tally.late.values()):
            break
        for part, new in tally.late.items():
            if new:
                decisions = _decided(target, fixed.table, spark, part, new)
    unknown: dict[Part, set[SchemaKey]] = {part: set(keys) for part, keys in decisions.unknown.items()}
    bad = quarantine.explained(left, codecs, unknown, ask_python="undecodable" in tally.reasons)
    delta.append_once(
        quarantine.quarantined(bad, pipeline=target.pipeline, batch_id=batch_id),
        target.quarantine,
        writer=writer_name(replace(target, checkpoint=checkpoint), spark),
        batch_id=batch_id,
        commit={"pipeline": target.pipeline, "run": target.run},
    )


def _decided(
    target: Target, table: str, spark: SparkSession, part: Part, new: Sequence[SchemaKey]
) -> Decisions:
    """Ask the registry, write its answers, and return what is decided; raise where a schema is known."""
    found, _, _ = target.registry.by_ids(new, subjects=target.subjects[part])
    schema_decisions.decide(spark, table, part, {key: key in found for key in new})
    decisions = schema_decisions.read(spark, table)
    if known := [key for key in new if key in decisions.known[part]]:
        ids = ", ".join(map(str, known))
        raise NewSchemaError(
            f"records of pipeline {target.pipeline} have schemas ({ids}) that were not known when its query "
            "started; nothing of them is lost",
            "start it again, and the queries of read_values with it",
            pipeline=target.pipeline,
            part=part,
            schema_ids=tuple(known),
        )
    return decisions
