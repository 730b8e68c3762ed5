"""Streams with a fixed plan that start again by themselves when a record has a newer schema.

A plan knows the schemas that the registry listed when it was made. A record with another one ends its query
before anything of the micro-batch is written, and another start, from the same checkpoint, knows the schema.
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
    NewSchemaError,
    SchemaRegistryError,
    StorageError,
    TopiclakeError,
)
from topiclake.streaming import progress, queries
from topiclake.streaming.failure import query_failure

_LOG = logging.getLogger(__name__)
#: Between two tries while a service is away (s): twice as long each time, up to the second.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 15.0
#: In which `start_quarantine` decides about a schema that the registry does not list (s): a batch of it.
DECISION_SECONDS = 60.0


class RestartedQuery:
    """A streaming query, and those that take its place; made by `start_restarted`.

    Attributes:
        query: The one that runs now, or ran last.
        restarts: How often another one took its place.
    """

    def __init__(self, start: Callable[[], StreamingQuery], patience: float) -> None:
        """Start the first query; raises what `start` raises."""
        self._start, self._patience = start, patience
        self._changed = Condition()
        self._ended, self._stopped = False, False
        self._error: TopiclakeError | None = None
        self.restarts = 0
        self.query = start()
        Thread(target=self._watch, name=f"restarts of {self.query.name}", daemon=True).start()

    @property
    def isActive(self) -> bool:  # noqa: N802 (as StreamingQuery has it)
        """Whether it runs, or is about to start again."""
        return not self._ended

    def await_caught_up(self, trigger: str) -> None:
        """Wait until what Kafka held is processed; as `topiclake.await_caught_up`, over restarts."""
        self._wait(lambda query: progress.await_caught_up(query, trigger))

    def keep_running(self, seconds: float | str) -> None:
        """Wait for so many seconds, or until it ends for good; as `topiclake.keep_running`, over restarts."""
        self._wait(lambda query: progress.keep_running(query, seconds))

    def stop(self) -> None:
        """Stop the query; the next start goes on where it stood."""
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
        except Exception as other:  # noqa: BLE001 (who waits must hear of it)
            error = IngestError(
                f"query {self.query.name} does not start again: {' '.join(str(other).split())[:500]}",
                query=self.query.name,
            )
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def _watched(self) -> TopiclakeError | None:
        """Start the query again as often as that mends it; return why it ended for good."""
        failed_at = ""
        while (error := self._end()) is not None:
            if not _is_mended_by_a_start(error) or error.cause == failed_at:
                return error
            failed_at = error.cause
            _LOG.warning("%s; it starts again", error.cause)
            if (error := self._started_again()) is not None:
                return error
        return None

    def _end(self) -> TopiclakeError | None:
        """Wait until the query ends, and return why; None: somebody wanted it, or there is no more to do."""
        try:
            self.query.awaitTermination()
        except StreamingQueryException as error:
            return None if self._stopped else query_failure(self.query.name, str(error))
        return None

    def _started_again(self) -> TopiclakeError | None:
        """Put another query in the place of the one that ended, or return why that does not go."""
        met: set[str] = set()
        end, wait = time.monotonic() + self._patience, _FIRST_WAIT
        while True:
            try:
                query = self._start()
            except (NewSchemaError, SchemaRegistryError, KafkaError, StorageError) as error:
                # The batch that was begun is finished first. A schema that the registry lists stops it once;
                # of another one `start_quarantine` may be about to decide.
                is_schema = isinstance(error, NewSchemaError)
                if is_schema and error.cause not in met:
                    met.add(error.cause)
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
    """Start a query that reads `read_values`, and start it again when a schema comes that is new to it.

    Args:
        start: Reads the topic anew, and starts the query, with the same checkpoint each time:
            `lambda: tl.start_console(tl.read_values(spark, settings), …)`. State needs the same columns each
            time: what a new version adds has to be left out before rows are grouped, joined or deduplicated.
        patience: How long another start is tried while a service is away (s).

    Returns:
        What waits for it and stops it.

    Raises:
        TopiclakeError: What the first start raises.

    Example:
        >>> def start():
        ...     return tl.start_memory(tl.read_values(spark, settings), "all", output_mode="append")
        >>> query = tl.start_restarted(start)
        >>> query.await_caught_up("availableNow")
    """
    return RestartedQuery(start, patience)


def _is_mended_by_a_start(error: TopiclakeError) -> bool:
    return isinstance(error, NewSchemaError) or bool(queries.KAFKA_METRICS_BUG.search(error.cause))
