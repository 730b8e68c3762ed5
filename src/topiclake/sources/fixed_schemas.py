"""Values that name schemas of the registry, in a plan that is fixed when its query starts.

Such a plan looks up no schemas. So a record whose schema is neither listed nor decided ends the query, and a
later start knows the decision: see `schema_decisions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from topiclake.formats.codec import Codecs, SchemaVersion
from topiclake.schema_registry.wire_format import Part, SchemaKey
from topiclake.sources import registered_rows, schema_decisions
from topiclake.sources.layout import Layout
from topiclake.sources.schema_decisions import Decisions
from topiclake.sources.topic_schemas import TopicSchemas


@dataclass(frozen=True)
class FixedSchemas:
    """The schemas that records may have after one start of a query; can be pickled, for Spark Connect.

    Attributes:
        codecs: How records of the schemas are decoded.
        decisions: The decisions on schemas that the subjects do not list.
        table: Location of the decisions.
    """

    codecs: Codecs
    decisions: Decisions = field(default_factory=Decisions)
    table: str = ""


def current_schemas(spark: SparkSession, topic_schemas: TopicSchemas, table: str) -> FixedSchemas:
    """Return the codecs of the versions that the registry lists now, and the decisions.

    Args:
        spark: The session.
        topic_schemas: The source of the schemas.
        table: Location of the decisions.

    Raises:
        SchemaRegistryError: The registry cannot be used, or lacks a subject.
        IngestError: No version can be used.
    """
    decisions = schema_decisions.read(spark, table)
    schemas = {part: _known_schemas(topic_schemas, decisions, part) for part in topic_schemas.subjects}
    return FixedSchemas(_united(spark, topic_schemas, schemas), decisions, table)


def looked_up_rows(records: DataFrame, topic_schemas: TopicSchemas, layout: Layout) -> DataFrame:
    """Return the rows of valid records, after a look-up of the schemas that no subject lists.

    Args:
        records: Kafka's records, no stream. One job counts their schemas.
        topic_schemas: The source of the schemas.
        layout: The columns of rows.

    Raises:
        SchemaRegistryError: The registry cannot be used, or lacks a subject.
        IngestError: No version can be used.
    """
    schemas = {part: topic_schemas.listed(part, refresh=True) for part in topic_schemas.subjects}
    codecs = _united(records.sparkSession, topic_schemas, schemas)
    late = registered_rows.tally(records, codecs, layout).late
    if any(late.values()):
        found = {part: schemas[part] | topic_schemas.registry.by_ids(keys)[0] for part, keys in late.items()}
        codecs = _united(records.sparkSession, topic_schemas, found)
    decoded = registered_rows.decode(records, codecs, layout)
    return registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, layout))


def _united(
    spark: SparkSession,
    topic_schemas: TopicSchemas,
    schemas: Mapping[Part, Mapping[SchemaKey, SchemaVersion]],
) -> Codecs:
    # No table must accept the columns.
    codecs = topic_schemas.unite(
        schemas,
        lambda part: partial(topic_schemas.refusal, spark, part=part, columns_refusal=lambda columns: None),
    )
    topic_schemas.require_usable(codecs)
    return codecs


def _known_schemas(
    topic_schemas: TopicSchemas, decisions: Decisions, part: Part
) -> dict[SchemaKey, SchemaVersion]:
    listed = topic_schemas.listed(part, refresh=True)
    decided = sorted(decisions.known.get(part, frozenset()) - listed.keys(), key=str)
    schemas, _, _ = topic_schemas.registry.by_ids(decided)
    unknown = decisions.unknown.get(part, ())
    return {key: version for key, version in (listed | schemas).items() if key not in unknown}


def valid_rows(records: DataFrame, fixed: FixedSchemas, layout: Layout, mode: str) -> DataFrame:
    """Return the rows of valid records; the plan raises at a record whose schema is not decided.

    In mode FAILFAST, it raises at each record that is not valid.
    """
    codecs = fixed.codecs
    decoded = registered_rows.fail_on_unknown_schema(
        registered_rows.decode(records, codecs, layout), codecs, fixed.decisions.unknown
    )
    if mode == "FAILFAST":
        decoded = registered_rows.fail_on_bad_record(decoded, codecs, layout, is_static=True)
    return registered_rows.valid_rows(registered_rows.as_rows(decoded, codecs, layout))
