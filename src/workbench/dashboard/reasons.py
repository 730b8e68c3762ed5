"""What the reasons of a quarantine mean, and what to do about each."""

from __future__ import annotations

#: By reason: what it means, what to do, and whether a replay may help.
_TOLD = {
    "tombstone": (
        "The value is null: in a compacted topic that deletes the key.",
        "Nothing to mend. `tombstones: skip` counts them and keeps them out of quarantine.",
        False,
    ),
    "too_short": (
        "There is no schema id in front, since the value has under 5 bytes.",
        "Look who wrote it: a producer that does not use the registry's serializer.",
        False,
    ),
    "bad_magic": (
        "There is no schema id in front: byte 0 is not 0, or the header has neither id nor GUID.",
        "Look who wrote it: a producer of another format, such as plain JSON, or of another topic.",
        False,
    ),
    "unknown_schema_id": (
        "The registry does not know the schema id, or was not asked, after others that it does not know.",
        "Register the schema under its id, or set schema_registry.url to where it is; then replay.",
        True,
    ),
    "wrong_schema_type": (
        "The schema id is that of a schema of another type than value_format.",
        "Set value_format to the type of the schema, or mend the producer; then replay.",
        True,
    ),
    "incompatible_schema": (
        "The schema of the record does not fit the table; the detail says which column.",
        "Mend the schema or the table's column; then replay.",
        True,
    ),
    "undecodable": (
        "The bytes are not one record of the schema that they name; the detail says where they break.",
        "Mend the producer, or value_schema where it is set; then replay.",
        True,
    ),
    "refused_by_table": (
        "The row breaks a CHECK, NOT NULL, CHAR(n) or VARCHAR(n) of the table; the detail says which.",
        "Mend the producer, or drop the constraint; then replay.",
        True,
    ),
}
_OTHER = ("The record was no row of the table; the detail says why.", "Look at the records' details.", True)


def told(reason: str) -> dict[str, object]:
    """Return `meaning`, `remedy` and `may_replay` of a reason."""
    meaning, remedy, may_replay = _TOLD.get(reason, _OTHER)
    return {"meaning": meaning, "remedy": remedy, "may_replay": may_replay}
