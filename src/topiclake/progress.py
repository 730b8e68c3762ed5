"""What a streaming query does, and why it ended."""

from __future__ import annotations

import re

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from topiclake import errors
from topiclake.errors import IngestError, OffsetsLostError, TopiclakeError

_OWN_ERROR = re.compile(r"topiclake\.errors\.(\w+): (.*?)(?:; try: (.*))?$", re.MULTILINE)
_FAILFAST = re.compile(r"FAILFAST: (.*?) \(end of record\)")


def await_caught_up(query: StreamingQuery, trigger: str) -> None:
    """Wait until the query has processed what Kafka held.

    Args:
        query: A running query.
        trigger: `availableNow`, and the query ends; or an interval, and it goes on running.

    Raises:
        TopiclakeError: The query failed; the error names the cause, not the stack.
    """
    try:
        if trigger == "availableNow":
            query.awaitTermination()
        else:
            query.processAllAvailable()
    except StreamingQueryException as error:
        raise failure(query.name, str(error)) from None
    except KeyboardInterrupt:
        query.stop()
        raise


def failure(query: str | None, text: str) -> TopiclakeError:
    """Turn the text of a failed query into the error that caused it."""
    if found := _FAILFAST.search(text):
        return errors.DecodeError(
            f"query {query} met a record that does not decode: {found[1]}",
            "mode=PERMISSIVE, which puts such records into the quarantine table",
        )
    if found := _OWN_ERROR.search(text):
        kind = getattr(errors, found[1], IngestError)
        return kind(f"query {query} stopped: {found[2]}", found[3] or "")
    if "Some data may have been lost" in text or "KAFKA_DATA_LOSS" in text:
        return OffsetsLostError(
            f"query {query} stopped: Kafka no longer holds offsets that its checkpoint asks for "
            f"({_last_cause(text)})",
            "a new checkpoint_path, after you have looked at what is missing",
        )
    if "CONCURRENT_STREAM_LOG_UPDATE" in text:
        return IngestError(
            f"query {query} stopped: another query uses its checkpoint; nothing was lost, that one goes on",
            "end one of them, or give this one a checkpoint_path and a table_path of its own",
        )
    if "SaslAuthenticationException" in text or "Authentication failed" in text:
        return errors.KafkaError(
            f"query {query} stopped: the broker refuses the login",
            "check the secrets kafka.username and kafka.password",
        )
    return IngestError(
        f"query {query} stopped: {_last_cause(text)}",
        "python -m workbench logs spark, or the log of the driver",
    )


def _last_cause(text: str) -> str:
    causes = re.findall(r"(?:Caused by|\w+(?:Exception|Error)): (.*)", text)
    return " ".join((causes[-1] if causes else text).split())[:500]
