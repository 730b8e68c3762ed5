"""What a streaming query does, and why it ended."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

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

_Call = TypeVar("_Call")

#: By run of a query, in the process that started it: what draws it, and what looks for losses; of so many.
_NEWEST = 1000
_drawings: dict[str, Callable[[], None]] = {}
_losses: dict[str, Callable[[], OffsetsLostError | None]] = {}


def await_caught_up(query: StreamingQuery, trigger: str) -> None:
    """Wait until the query has processed what Kafka held.

    Args:
        query: A running query.
        trigger: `availableNow`, and the query ends; or an interval, and it goes on running.

    Raises:
        TopiclakeError: The query failed; the error names the cause, not the stack.
    """
    # Not asked for where nothing is drawn: behind a JVM that is gone, or Ctrl-C, it would hide the cause.
    draw = _drawings.get(str(query.runId)) if _drawings else None
    try:
        if trigger == "availableNow":
            query.awaitTermination()
        else:
            query.processAllAvailable()
    except StreamingQueryException as error:
        raise _failure(query, error) from None
    except KeyboardInterrupt:
        query.stop()
        raise
    finally:
        if draw is not None:
            draw()


def draw_when_caught_up(query: StreamingQuery, draw: Callable[[], None]) -> None:
    """Have a query drawn once more by who waits for it: a notebook may end there."""
    _note(_drawings, query, draw)


def _note(kept: dict[str, _Call], query: StreamingQuery, call: _Call) -> None:
    kept[str(query.runId)] = call
    if len(kept) > _NEWEST:
        del kept[next(iter(kept))]


def keep_running(query: StreamingQuery, seconds: float | str) -> None:
    """Wait for so many seconds, or until the query ends; text, as widgets hold it, will do.

    Raises:
        ConfigError: `seconds` is no number of seconds.
        TopiclakeError: The query failed; the error names the cause, not the stack.
    """
    if not re.fullmatch(r"\d+(\.\d+)?", str(seconds)):
        raise errors.ConfigError(
            f"{seconds!r} is no number of seconds",
            "0, or 3600 for an hour",
            parameter="seconds",
            found=seconds,
        )
    if not float(seconds):
        return
    try:
        query.awaitTermination(math.ceil(float(seconds)))
    except StreamingQueryException as error:
        raise _failure(query, error) from None
    except KeyboardInterrupt:
        query.stop()
        raise


def has_ended(query: StreamingQuery, seconds: int) -> bool:
    """Wait for so many seconds, or until a query ends, and return whether it has ended, for any reason."""
    try:
        return bool(query.awaitTermination(seconds))
    except Exception:  # noqa: BLE001 (the caller that awaits the query gets its error; or Spark is gone)
        return True


def explain_losses(query: StreamingQuery, find: Callable[[], OffsetsLostError | None]) -> None:
    """Say which offsets were lost when a query ends because of that.

    Args:
        query: A running query.
        find: Looks for them, after the failure.
    """
    _note(_losses, query, find)


def _failure(query: StreamingQuery, error: StreamingQueryException) -> TopiclakeError:
    found = failure(query.name, str(error))
    find = _losses.get(str(query.runId))
    if not isinstance(found, OffsetsLostError) or find is None:
        return found
    return find() or found


def failure(query: str | None, text: str) -> TopiclakeError:
    """Turn the text of a failed query into the error that caused it."""
    found = _FAILFAST.search(text)
    if found and found[1].endswith(NOT_LISTED):
        cause = f"query {query} stopped, with nothing lost: {found[1]}"
        remedy = "start it again; where that does not help, start_quarantine asks for the schema"
        return NewSchemaError(cause, remedy, query=query, **_record_fields(found[1]))
    if found:
        return errors.DecodeError(
            f"query {query} met a record that does not decode: {found[1]}",
            "mode=PERMISSIVE, which puts such records into the quarantine table",
            query=query,
            **_record_fields(found[1]),
        )
    if found := _OWN_ERROR.search(text):
        kind = getattr(errors, found[1], IngestError)
        fields = _record_fields(found[2]) if kind is errors.DecodeError else {}
        return kind(f"query {query} stopped: {found[2]}", found[3] or "", query=query, **fields)
    if found := _TABLE_CHANGED.search(text):
        return NewSchemaError(
            f"query {query} stopped, with nothing lost: the table that it reads has other columns from its "
            f"version {found[1]} on",
            "start it again",
            query=query,
            version=int(found[1]),
        )
    if "Some data may have been lost" in text or "KAFKA_DATA_LOSS" in text:
        return OffsetsLostError(
            f"query {query} stopped: Kafka no longer holds offsets that its checkpoint asks for "
            f"({_last_cause(text)})",
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
        f"query {query} stopped: {_last_cause(text)}",
        "python -m workbench logs spark, or the log of the driver",
        query=query,
    )


def _record_fields(text: str) -> dict[str, object]:
    """Return the fields of the record that a text names; a schema id is an int, a GUID, or None."""
    found = _RECORD.search(text)
    if found is None:
        return {}
    fields: dict[str, object] = {name: value for name, value in found.groupdict().items() if value}
    fields |= {"partition": int(found["partition"]), "offset": int(found["offset"])}
    if schema_id := found["schema_id"]:
        is_number = schema_id.isdigit() and len(schema_id) <= 10
        fields["schema_id"] = int(schema_id) if is_number else None if schema_id == "none" else schema_id
    return fields


def _last_cause(text: str) -> str:
    # Spark 4.1 hangs the trace of the thread that failed below the error as another one, which says nothing.
    text = re.sub(r"^\s*Suppressed: .*$", "", text, flags=re.MULTILINE)
    causes = re.findall(r"(?:Caused by|\w+(?:Exception|Error)): (.*)", text)
    return " ".join((causes[-1] if causes else text).split())[:500]
