"""Why a query ended: the error that caused it, found again in Spark's text."""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

from topiclake import errors
from topiclake.errors import SECOND_QUERY, IngestError, NewSchemaError, OffsetsLostError, TopiclakeError

_OWN_ERROR = re.compile(
    r"topiclake\.errors\.(\w+): (.*?)(?:; try: (.*?))?(?: \[TL-[A-Z\d-]+\](?: SQLSTATE: \w+)*)?$",
    re.MULTILINE,
)


#: Of a record, not of the plan that may raise it, which Spark prints with the error of any other cause.
_FAILFAST = re.compile(r"FAILFAST: (topic [\w.-]+, .*?) \(end of record\)")


#: Topic, partition and offset of a record, and its schema and reason where the sentence names them.
_RECORD = re.compile(
    r"topic (?P<topic>[\w.-]+), partition (?P<partition>\d+), offset (?P<offset>\d+)"
    r"(?:, schema (?:id |of its \w+ )?(?P<schema_id>\w+))?(?:, reason (?P<reason>(?:key )?\w+))?"
)


#: A stream of a Delta table that was given columns.
_TABLE_CHANGED = re.compile(r"\[DELTA_SCHEMA_CHANGED\w*\] Detected schema change in version (\d+)")


#: How the refusal of a record ends whose schema a fixed plan does not know.
NOT_LISTED = "its schema was not in the registry's list when the query started, and is not decided"

#: How the error of a record that is not right begins, in mode FAILFAST.
FAILFAST = "FAILFAST:"


def query_failure(query: str | None, text: str) -> TopiclakeError:
    """Turn the text of a failed query into the error that caused it."""
    match = _FAILFAST.search(text)
    if match and match[1].endswith(NOT_LISTED):
        cause = f"query {query} stopped, with nothing lost: {match[1]}"
        remedy = "start it again; where that does not help, start_quarantine asks for the schema"
        return NewSchemaError(cause, remedy, query=query, **_record_fields(match[1]))
    if match:
        return errors.DecodeError(
            f"query {query} met a record that does not decode: {match[1]}",
            "mode=PERMISSIVE, which puts such records into the quarantine table",
            query=query,
            **_record_fields(match[1]),
        )
    if match := _OWN_ERROR.search(text):
        kind = getattr(errors, match[1], IngestError)
        fields = _record_fields(match[2]) if kind is errors.DecodeError else {}
        return kind(f"query {query} stopped: {match[2]}", match[3] or "", query=query, **fields)
    if match := _TABLE_CHANGED.search(text):
        return NewSchemaError(
            f"query {query} stopped, with nothing lost: the table that it reads has other columns from its "
            f"version {match[1]} on",
            "start it again",
            query=query,
            version=int(match[1]),
        )
    if "Some data may have been lost" in text or "KAFKA_DATA_LOSS" in text:
        return OffsetsLostError(
            f"query {query} stopped: Kafka no longer holds offsets that its checkpoint asks for "
            f"({last_cause(text)})",
            "a new checkpoint_path and table_path, or fail_on_data_loss=false, which goes on behind them",
            query=query,
        )
    if SECOND_QUERY.search(text):
        return IngestError(
            f"query {query} stopped: another query uses its checkpoint; nothing was lost, that one goes on",
            "end one of them, or give this one a checkpoint_path and a table_path of its own",
            query=query,
        )
    if "SaslAuthenticationException" in text or "Authentication failed" in text:
        return errors.KafkaError(
            f"query {query} stopped: the broker refuses the login",
            "check the secrets kafka.username and kafka.password",
            query=query,
        )
    return IngestError(
        f"query {query} stopped: {last_cause(text)}",
        "python -m workbench logs spark, or the log of the driver",
        query=query,
    )


def _record_fields(text: str) -> dict[str, object]:
    """Return the fields of the record that a text names; a schema id is an int, a GUID, or None."""
    match = _RECORD.search(text)
    if match is None:
        return {}
    fields: dict[str, object] = {name: value for name, value in match.groupdict().items() if value}
    fields |= {"partition": int(match["partition"]), "offset": int(match["offset"])}
    if schema_id := match["schema_id"]:
        is_number = schema_id.isdigit() and len(schema_id) <= 10
        fields["schema_id"] = int(schema_id) if is_number else None if schema_id == "none" else schema_id
    return fields


def last_cause(text: str) -> str:
    """Return the last cause that the text of an error names, in one line."""
    # Spark 4.1 hangs the trace of the thread that failed below the error as another one, which says nothing.
    text = re.sub(r"^\s*Suppressed: .*$", "", text, flags=re.MULTILINE)
    causes = re.findall(r"(?:Caused by|\w+(?:Exception|Error)): (.*)", text)
    return " ".join((causes[-1] if causes else text).split())[:500]


def refused_record(*text: Column) -> Column:
    """Raise, and say which record of Kafka's it is and `text`; `query_failure` finds the sentence again."""
    topic, partition, offset = (F.col(name).cast("string") for name in ("topic", "partition", "offset"))
    location = [
        F.lit(f"{FAILFAST} topic "),
        topic,
        F.lit(", partition "),
        partition,
        F.lit(", offset "),
        offset,
    ]
    return F.raise_error(F.concat(*location, *text, F.lit(" (end of record)")))
