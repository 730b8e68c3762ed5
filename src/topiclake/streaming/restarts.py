"""Streams with a fixed plan that restart automatically when a record has a newer schema.

A plan knows the schemas that the registry listed when the query started. A record with another schema ends
the query before the micro-batch writes anything. A restart from the same checkpoint knows the schema.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Condition, Thread

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from topiclake.errors import (
    IngestError,
    KafkaError,
    LoginError,
    NewSchemaError,
    SchemaRegistryError,
    StorageError,
    TopiclakeError,
)
from topiclake.streaming import progress, queries
from topiclake.streaming.failure import query_failure

_LOG = logging.getLogger(__name__)
#: Pauses between attempts while a service is unavailable (s): the first, and the longest. Each pause is twice
#: as long as the one before.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 15.0
#: Time in which a batch of `start_quarantine` decides about a schema that the registry does not list (s).
DECISION_SECONDS = 60.0


class RestartedQuery:
    """A streaming query and its restarts; created by `start_restarted`.

    Attributes:
        query: The query that runs now, or ran last.
        restarts: Number of restarts.
    """

    def __init__(self, start: Callable[[], StreamingQuery], patience: float) -> None:
        """Start the first query; errors of `start` are raised."""
        self._start, self._patience = start, patience
        self._changed = Condition()
        self._ended, self._stopped = False, False
        self._error: TopiclakeError | None = None
        self.restarts = 0
        self.query = start()
        Thread(target=self._watch, name=f"restarts of {self.query.name}", daemon=True).start()

    @property
    def isActive(self) -> bool:  # noqa: N802 (as StreamingQuery has it)
        """Whether the query runs, or is about to restart."""
        return not self._ended

    def await_caught_up(self, trigger: str) -> None:
        """Wait as `topiclake.await_caught_up` until Kafka's records are processed, over restarts."""
        self._wait(lambda query: progress.await_caught_up(query, trigger))

    def keep_running(self, seconds: float | str) -> None:
        """Wait as `topiclake.keep_running` for `seconds`, or until the query ends and does not restart."""
        self._wait(lambda query: progress.keep_running(query, seconds))

    def stop(self) -> None:
        """Stop the query; the next start continues from its checkpoint."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.query.stop()

    def _wait(self, wait: Callable[[StreamingQuery], None]) -> None:
        while True:
            query = self.query
            try:
                wait(query)
            except IngestError:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or self.query is not query)  # noqa: B023
                if self._ended:
                    if self._error is not None:
                        raise self._error from None
                    return
            else:
                return

    def _watch(self) -> None:
        try:
            error = self._watched()
        except Exception as other:  # noqa: BLE001 (the waiting caller must get it)
            error = IngestError(
                f"query {self.query.name} does not start again: {' '.join(str(other).split())[:500]}",
                "fix the cause, and start the query again",
                query=self.query.name,
            )
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def _watched(self) -> TopiclakeError | None:
        """Restart the query while restarts help; return the error that ended it, if any."""
        failed_at = ""
        while (error := self._end()) is not None:
            if not _is_fixed_by_restart(error) or error.cause == failed_at:
                return error
            failed_at = error.cause
            _LOG.warning("%s; it starts again", error.cause)
            if (error := self._restart()) is not None:
                return error
        return None

    def _end(self) -> TopiclakeError | None:
        """Wait until the query ends, and return its error; None if it was stopped or has finished."""
        try:
            self.query.awaitTermination()
        except StreamingQueryException as error:
            return None if self._stopped else query_failure(self.query.name, str(error))
        return None

    def _restart(self) -> TopiclakeError | None:
        """Start another query instead of the one that ended, or return the error that prevents it."""
        seen_causes: set[str] = set()
        end, wait = time.monotonic() + self._patience, _FIRST_WAIT
        while True:
            try:
                query = self._start()
            except (NewSchemaError, SchemaRegistryError, KafkaError, LoginError, StorageError) as error:
                # The start first finishes the interrupted batch. A schema that the registry lists stops that
                # batch once. `start_quarantine` may be about to decide about any other schema.
                is_schema = isinstance(error, NewSchemaError)
                if is_schema and error.cause not in seen_causes:
                    seen_causes.add(error.cause)
                    end = time.monotonic() + min(self._patience, DECISION_SECONDS)
                    continue
                if time.monotonic() > end:
                    return error
                _LOG.warning("%s; another try in %.0f s", error.cause, wait)
                with self._changed:
                    if self._changed.wait_for(lambda: self._stopped, wait):
                        return None
                wait = min(2 * wait, _LONGEST_WAIT)
            except TopiclakeError as error:
                return error
            else:
                break
        with self._changed:
            self.query = query
            self.restarts += 1
            self._changed.notify_all()
        if self._stopped:
            query.stop()
        return None


def start_restarted(start: Callable[[], StreamingQuery], *, patience: float = 300) -> RestartedQuery:
    """Start a query that reads `read_values`, and restart it when a record has a new schema.

    Args:
        start: Reads the topic and starts the query, with the same checkpoint each time:
            `lambda: tl.start_console(tl.read_values(spark, settings), …)`. State needs the same columns each
            time: drop columns that a new schema adds before rows are grouped, joined or deduplicated.
        patience: Time in which a restart is tried again while a service is unavailable (s).

    Returns:
        The running query, with methods that wait for it and stop it.

    Raises:
        TopiclakeError: The first start failed.

    Example:
        >>> def start():
        ...     return tl.start_memory(tl.read_values(spark, settings), "all", output_mode="append")
        >>> query = tl.start_restarted(start)
        >>> query.await_caught_up("availableNow")
    """
    return RestartedQuery(start, patience)


def _is_fixed_by_restart(error: TopiclakeError) -> bool:
    return isinstance(error, NewSchemaError) or bool(queries.KAFKA_METRICS_BUG.search(error.cause))
