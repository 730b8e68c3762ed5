"""Why a record is no row of the table: what each reason means, and what to do about it.

Classification, views and the dashboard read this module; `tests/unit/test_reasons.py` compares the docs.
"""

from __future__ import annotations

from dataclasses import dataclass

#: What is said of a record that is a row.
OK = "ok"

TOMBSTONE = "tombstone"
TOO_SHORT = "too_short"
BAD_MAGIC = "bad_magic"
UNKNOWN_SCHEMA_ID = "unknown_schema_id"
WRONG_SCHEMA_TYPE = "wrong_schema_type"
INCOMPATIBLE_SCHEMA = "incompatible_schema"
UNDECODABLE = "undecodable"
REFUSED_BY_TABLE = "refused_by_table"


@dataclass(frozen=True)
class Reason:
    """What a reason tells.

    Attributes:
        meaning: What it says of the record.
        remedy: What to do.
        may_replay: Whether a replay may make it a row, once that is done.
    """

    meaning: str
    remedy: str
    may_replay: bool


#: By name, in the order in which they are looked for.
REASONS = {
    TOMBSTONE: Reason(
        "The value is null: in a compacted topic that deletes the key.",
        "Nothing to mend. `tombstones: skip` counts them and keeps them out of quarantine.",
        may_replay=False,
    ),
    TOO_SHORT: Reason(
        "There is no schema id in front, since the value has under 5 bytes.",
        "Look who wrote it: a producer that does not use the registry's serializer.",
        may_replay=False,
    ),
    BAD_MAGIC: Reason(
        "There is no schema id in front: byte 0 is not 0, or the header has neither id nor GUID.",
        "Look who wrote it: a producer of another format, such as plain JSON, or of another topic.",
        may_replay=False,
    ),
    UNKNOWN_SCHEMA_ID: Reason(
        "The registry does not know the schema id, or was not asked, after others that it does not know.",
        "Register the schema under its id, or set schema_registry.url to where it is; then replay.",
        may_replay=True,
    ),
    WRONG_SCHEMA_TYPE: Reason(
        "The schema id is that of a schema of another type than value_format.",
        "Set value_format to the type of the schema, or mend the producer; then replay.",
        may_replay=True,
    ),
    INCOMPATIBLE_SCHEMA: Reason(
        "The schema of the record does not fit the table; the detail says which column.",
        "Mend the schema or the table's column; then replay.",
        may_replay=True,
    ),
    UNDECODABLE: Reason(
        "The bytes are not one record of the schema that they name; the detail says where they break.",
        "Mend the producer, or value_schema where it is set; then replay.",
        may_replay=True,
    ),
    REFUSED_BY_TABLE: Reason(
        "The row breaks a CHECK, NOT NULL, CHAR(n) or VARCHAR(n) of the table; the detail says which.",
        "Mend the producer, or drop the constraint; then replay.",
        may_replay=True,
    ),
}

#: Of a reason that another version of Topiclake wrote.
OTHER = Reason(
    "The record was no row of the table; the detail says why.",
    "Look at the records' details.",
    may_replay=True,
)
