"""The streaming query of a `display`: its options, its start and its progress."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from topiclake.errors import TopiclakeError
from topiclake.monitoring.charts import BatchPoint
from workbench.dbutils.mounts import is_within, local_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

OPTIONS = ("streamName", "trigger", "processingTime", "checkpointLocation")
#: In this order: an aggregation has a whole result to show; only there Spark allows `complete`.
OUTPUT_MODES = ("complete", "append", "update")
_numbers = itertools.count(1)


class DisplayError(TopiclakeError):
    """An object cannot be shown.

    Correct the option or the path that the text names.
    """

    id: ClassVar[str] = "TL-DISPLAY-001"


@dataclass(frozen=True)
class QueryOptions:
    """How a query is to run.

    Attributes:
        name: Seen in `spark.streams.active`.
        trigger: For `DataStreamWriter.trigger`; empty is Spark's default.
        checkpoint: Where, or "" for a temporary folder.
    """

    name: str
    trigger: Mapping[str, Any]
    checkpoint: str

    @property
    def ends(self) -> bool:
        """Whether the query ends by itself."""
        return "availableNow" in self.trigger or "once" in self.trigger

    @classmethod
    def read(cls, options: Mapping[str, object], located: Callable[[str], str]) -> QueryOptions:
        """Read the options of a `display`.

        Args:
            options: The options `streamName`, `checkpointLocation`, and `processingTime` or `trigger`. An
                interval is text such as "2 seconds". The option `trigger` may also be "availableNow", or a
                mapping with the arguments of `DataStreamWriter.trigger`.
            located: Turns a path below a mount point into one that Spark opens.

        Raises:
            DisplayError: An option is unknown, or does not accept its value.
        """
        _refuse_unknown(options)
        if options.get("trigger") is not None and options.get("processingTime") is not None:
            problem = "display was given both trigger and processingTime"
            raise DisplayError(problem, "pass one of them", options=("trigger", "processingTime"))
        for option in ("streamName", "processingTime", "checkpointLocation"):
            if not isinstance(options.get(option), str | None):
                problem = f"display was given {option}={options[option]!r}, not a string"
                raise DisplayError(problem, f'pass {option}="…"', option=option, found=options[option])
        name = options.get("streamName") or f"display_query_{next(_numbers)}"
        checkpoint = options.get("checkpointLocation")
        return cls(str(name), _trigger(options), located(str(checkpoint)) if checkpoint else "")


def _refuse_unknown(options: Mapping[str, object]) -> None:
    unknown = ", ".join(sorted(options.keys() - set(OPTIONS)))
    if unknown:
        raise DisplayError(
            f"display has no option {unknown}",
            f"use one of {', '.join(OPTIONS)}",
            options=tuple(sorted(options.keys() - set(OPTIONS))),
            allowed=tuple(OPTIONS),
        )


def _trigger(options: Mapping[str, object]) -> Mapping[str, Any]:
    if options.get("processingTime") is not None:
        return {"processingTime": options["processingTime"]}
    match options.get("trigger"):
        case None:
            return {}
        case "availableNow":
            return {"availableNow": True}
        case str() as interval:
            return {"processingTime": interval}
        case Mapping() as trigger:
            return trigger
        case other:
            raise DisplayError(
                f"display was given trigger={other!r}",
                'pass trigger="2 seconds"',
                option="trigger",
                found=other,
            )


def below_mounts(path: str, mounts: Iterable[tuple[str, str, str]]) -> str:
    """Return where Spark finds a path that lies below a mount point; another path stays as it is.

    Raises:
        DisplayError: It begins with /mnt/, and nothing is mounted there.
    """
    plain = path.removeprefix("dbfs:")
    for mount_point, source, _ in mounts:
        if is_within(plain, mount_point):
            # In a path, Spark reads %20 as three characters; in the URI of a mount's source it is a space.
            folder = local_folder(source)
            return (f"file://{folder}" if folder else source.rstrip("/")) + plain[len(mount_point) :]
    if plain.startswith("/mnt/"):
        raise DisplayError(f"nothing is mounted at {path}", "dbutils.fs.mounts()", path=path)
    return path


def start_query(
    frame: DataFrame, options: QueryOptions, checkpoint: str, on_batch: Callable[[DataFrame, str], None]
) -> StreamingQuery:
    """Start a query that calls `on_batch` with each micro-batch, in an output mode that Spark allows.

    Args:
        frame: A streaming DataFrame.
        options: The trigger, the name and the checkpoint of the query.
        checkpoint: The address of the checkpoint. Each output mode that Spark refuses would otherwise leave a
            temporary checkpoint on disk.
        on_batch: Gets the rows of each micro-batch, and the output mode.

    Raises:
        AnalysisException: Spark cannot run the query.
    """
    from pyspark.errors import AnalysisException

    refused, before = None, {query.runId for query in frame.sparkSession.streams.active}
    for mode in OUTPUT_MODES:
        try:
            return _writer(frame, options, on_batch, mode).option("checkpointLocation", checkpoint).start()
        except KeyboardInterrupt:
            # py4j's connection of this thread may have lost an answer; another thread has its own.
            stopping = threading.Thread(target=_stop_new, args=(frame, options.name, before))
            stopping.start()
            stopping.join()
            raise
        except AnalysisException as error:
            if not (error.getCondition() or "").startswith("STREAMING_OUTPUT_MODE"):
                raise
            # The error of `append` explains more than that of `complete`, which only asks for an aggregation.
            refused = error if mode != "update" else refused or error
    assert refused is not None  # noqa: S101 - there is at least one mode
    raise refused


def _writer(
    frame: DataFrame, options: QueryOptions, on_batch: Callable[[DataFrame, str], None], mode: str
) -> DataStreamWriter:
    def write_batch(batch: DataFrame, number: int) -> None:
        on_batch(batch, mode)

    writer = frame.writeStream.outputMode(mode).queryName(options.name).foreachBatch(write_batch)
    return writer.trigger(**options.trigger) if options.trigger else writer


def _stop_new(frame: DataFrame, name: str, before: Set[str]) -> None:
    for query in frame.sparkSession.streams.active:
        if query.name == name and query.runId not in before:
            query.stop()


def batch_point(progress: Mapping[str, Any]) -> BatchPoint:
    """Return the displayed part of Spark's progress report on a micro-batch."""
    return BatchPoint(
        batch=int(progress["batchId"]),
        time=datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")),
        rows=int(progress["numInputRows"]),
        input_rate=_finite(progress["inputRowsPerSecond"]),
        processing_rate=_finite(progress["processedRowsPerSecond"]),
        milliseconds=_finite(progress["batchDuration"]),
    )


def _finite(number: float | None) -> float:
    # The first batch has no predecessor, so Spark divides by zero for its rates.
    return float(number) if number is not None and math.isfinite(number) else 0.0


def failure_cause(text: str) -> str:
    """Return the cause of a query's failure, in one line, from the text of its exception."""
    message = text.partition("JVM stacktrace:")[0]
    causes = re.findall(r"\w+(?:Exception|Error): (.*)", message)
    cause = causes[-1] if causes else message.partition("terminated with exception: ")[2] or message
    return " ".join(cause.split())[:500]
