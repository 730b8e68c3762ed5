"""Reasons why a record is not a row of the table, each with its meaning and a remedy.

Classification, views and the dashboard read this module. The docs have the same reasons:
`tests/repository/test_reasons.py` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The classification of a record that is a row.
OK = "ok"

TOMBSTONE = "tombstone"
TOO_SHORT = "too_short"
BAD_MAGIC = "bad_magic"
UNKNOWN_SCHEMA_ID = "unknown_schema_id"
WRONG_SCHEMA_TYPE = "wrong_schema_type"
INCOMPATIBLE_SCHEMA = "incompatible_schema"
UNDECODABLE = "undecodable"
REFUSED_BY_TABLE = "refused_by_table"
NO_KEY = "no_key"
NO_ORDER = "no_order"
UNAVAILABLE_VALUE = "unavailable_value"


@dataclass(frozen=True)
class Reason:
    """The reason of a rejected record.

    Attributes:
        meaning: The problem of the record.
        remedy: The action that solves the problem.
        may_replay: Whether a replay may make the record a row after this action.
    """

    meaning: str
    remedy: str
    may_replay: bool


#: By name, in the order of classification.
REASONS = {
    TOMBSTONE: Reason(
        "The value is null: in a compacted topic that deletes the key.",
        "Nothing to fix. `tombstones: skip` counts them and keeps them out of quarantine.",
        may_replay=False,
    ),
    TOO_SHORT: Reason(
        "There is no schema id in front, since the value has under 5 bytes.",
        "Find the producer. It does not use the registry's serializer.",
        may_replay=False,
    ),
    BAD_MAGIC: Reason(
        "There is no schema id in front: byte 0 is not 0, or the header has neither id nor GUID.",
        "Find the producer. It writes another format, such as plain JSON, or belongs to another topic.",
        may_replay=False,
    ),
    UNKNOWN_SCHEMA_ID: Reason(
        "The registry does not know the schema id, or was not asked (at most five unknown ids a minute).",
        "Register the schema under its id, or set schema_registry.url to where it is; then replay.",
        may_replay=True,
    ),
    WRONG_SCHEMA_TYPE: Reason(
        "The schema id is that of a schema of another type than value_format.",
        "Set value_format to the type of the schema, or fix the producer; then replay.",
        may_replay=True,
    ),
    INCOMPATIBLE_SCHEMA: Reason(
        "The schema of the record does not fit the table; the detail says which column.",
        "Fix the schema or the table's column; then replay.",
        may_replay=True,
    ),
    UNDECODABLE: Reason(
        "The bytes are not one record of the schema that they name; the detail says where they break.",
        "Fix the producer, or value_schema where it is set; then replay.",
        may_replay=True,
    ),
    REFUSED_BY_TABLE: Reason(
        "The row breaks a CHECK, NOT NULL, CHAR(n) or VARCHAR(n) of the table; the detail says which.",
        "Fix the producer, or drop the constraint; then replay.",
        may_replay=True,
    ),
    NO_KEY: Reason(
        "A change has null in one of its keys, so it belongs to no row.",
        "Fix the producer, or choose other keys.",
        may_replay=False,
    ),
    NO_ORDER: Reason(
        "A change has null in one of the columns of sequence_by, or it is a truncate without sequence_by.",
        "Fix the producer, or choose another sequence_by.",
        may_replay=False,
    ),
    UNAVAILABLE_VALUE: Reason(
        "A change has Debezium's placeholder for an unchanged large value, and the table has no such row.",
        "Take a new snapshot of the row, or set the source table's REPLICA IDENTITY to FULL.",
        may_replay=True,
    ),
}

#: For a reason that another version of Topiclake wrote.
OTHER = Reason(
    "The record was no row of the table; the detail says why.",
    "Look at the records' details.",
    may_replay=True,
)
