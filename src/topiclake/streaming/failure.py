"""The error that ended a query, recovered from the text of Spark's exception."""

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


#: The error of a record. Spark also prints the plan that may raise it with errors of other causes, and that
#: text must not match.
_FAILFAST = re.compile(r"FAILFAST: (topic [\w.-]+, .*?) \(end of record\)")


#: Topic, partition and offset of a record, and its schema and reason if the text names them.
_RECORD = re.compile(
    r"topic (?P<topic>[\w.-]+), partition (?P<partition>\d+), offset (?P<offset>\d+)"
    r"(?:, schema (?:id |of its \w+ )?(?P<schema_id>\w+))?(?:, reason (?P<reason>(?:key )?\w+))?"
)


#: Delta's error for a stream of a table that has got new columns.
_TABLE_CHANGED = re.compile(r"\[DELTA_SCHEMA_CHANGED\w*\] Detected schema change in version (\d+)")


#: End of the error for a record whose schema a fixed plan does not know.
NOT_LISTED = "its schema was not in the registry's list when the query started, and is not decided"

#: Texts of Kafka's client on the JVM about a login, each with its cause and remedy. The texts after them may
#: quote what an OAuth server answered, and are not shown. Spark omits why a client cannot start.
_LOGIN_FAILURES = {
    "Failed to create new KafkaAdminClient": (
        "Kafka's client cannot log in",
        "check kafka.oauth; for AWS_MSK_IAM, add the jar aws-msk-iam-auth to spark.jars; "
        "the driver's log names the cause",
    ),
    "SslAuthenticationException": (
        "broker and client do not trust each other's certificates",
        "check kafka.ca_file and kafka.client_certificate",
    ),
}


#: Beginning of the error for a record that cannot be decoded, in mode FAILFAST.
FAILFAST = "FAILFAST:"


def query_failure(query: str | None, text: str) -> TopiclakeError:
    """Return the error that caused the failure of a query, found in the text of its exception."""
    match = _FAILFAST.search(text)
    if match and match[1].endswith(NOT_LISTED):
        cause = f"query {query} stopped, with nothing lost: {match[1]}"
        remedy = "start it again; where that does not help, start_quarantine asks for the schema"
        return NewSchemaError(cause, remedy, query=query, **_record_fields(match[1]))
    if match:
        return errors.DecodeError(
            f"query {query} met a record that does not decode: {match[1]}",
            "set mode=PERMISSIVE, which puts such records into the quarantine table",
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
            "set a new checkpoint_path and table_path, or fail_on_data_loss=false to continue after them",
            query=query,
        )
    if SECOND_QUERY.search(text):
        return IngestError(
            f"query {query} stopped: another query uses its checkpoint; nothing was lost, that one continues",
            "end one of them, or give this one another checkpoint_path and table_path",
            query=query,
        )
    if "SaslAuthenticationException" in text or "Authentication failed" in text:
        return errors.KafkaError(
            f"query {query} stopped: the broker refuses the login",
            "check the secrets kafka.username and kafka.password, or kafka.oauth",
            query=query,
        )
    for pattern, (cause, remedy) in _LOGIN_FAILURES.items():
        if pattern in text:
            return errors.KafkaError(f"query {query} stopped: {cause}", remedy, query=query)
    return IngestError(
        f"query {query} stopped: {last_cause(text)}",
        "read python -m workbench logs spark, or the log of the driver",
        query=query,
    )


def _record_fields(text: str) -> dict[str, object]:
    """Return the fields of the record that a text names; a schema id is an int, a GUID or None."""
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
    """Return the last cause in the text of an error, in one line."""
    # Spark 4.1 appends the failed thread's trace as a suppressed exception, which adds no information.
    text = re.sub(r"^\s*Suppressed: .*$", "", text, flags=re.MULTILINE)
    causes = re.findall(r"(?:Caused by|\w+(?:Exception|Error)): (.*)", text)
    return " ".join((causes[-1] if causes else text).split())[:500]


def refused_record(*text: Column) -> Column:
    """Return a column that raises an error with the record's topic, partition, offset and `text`.

    `query_failure` finds that text in the exception.
    """
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
