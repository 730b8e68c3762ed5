"""`display` and `displayHTML`: DataFrames, streams, pictures and HTML in a notebook's output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import IPython.display

from workbench.display.displayed_streams import StreamDisplays
from workbench.display.query import DisplayError, QueryOptions, below_mounts
from workbench.display.rows import Fetched, fetch_first
from workbench.display.stream import LOG_COMMAND, StreamDisplay
from workbench.display.surfaces import NotebookOutput
from workbench.display.table import Redaction, fitting, html_table, text_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: How long a run waits after its last cell for the first micro-batch of a stream.
FIRST_BATCH_SECONDS = 60.0
STOP_SECONDS = 3.0
#: Drawn by plotly's own extension of JupyterLab.
PLOTLY_MIME_TYPE = "application/vnd.plotly.v1+json"

_publish = cast("Callable[..., None]", IPython.display.display)  # it carries no types


class Display:
    """The `display` of a notebook.

    Args:
        redaction: Applied to each value before it is cut to its width, so that no half secret stays.
        mounts: Returns mount points with their sources, for `checkpointLocation`.
        draws_plotly: Whether the viewer of the output draws plotly's figures itself, as JupyterLab does.
    """

    def __init__(
        self,
        redaction: Redaction | None = None,
        mounts: Callable[[], Iterable[tuple[str, str, str]]] = tuple,
        *,
        draws_plotly: bool = False,
    ) -> None:
        self._redaction = redaction or Redaction()
        self._mounts = mounts
        self._streams = StreamDisplays()
        self._draws_plotly = draws_plotly
        self._has_plotly = False

    def __call__(self, input: object = None, **options: object) -> None:
        """Show a DataFrame or named tuples as a table, a plotly figure as a picture, others as Jupyter does.

        A streaming DataFrame is shown live: at most 100 of its newest rows, or of the whole result of an
        aggregation. Input rate, processing rate and batch duration are shown, too. The call returns at once.
        The output changes while other cells run, until the query is stopped (`spark.streams.active`) or the
        cell runs again.

        On Databricks a run lasts as long as a stream is active. Here a run (`workbench run`, a job) ends
        after its last cell, and after the end of `availableNow` streams. It stops other active streams
        as soon as they have shown rows, at the latest after a minute. A stream that failed fails the run. The
        saved notebook holds the last state of each stream.

        Args:
            input: A DataFrame, a list of named tuples, a figure, or another object.
            **options: For a streaming DataFrame `streamName`, `checkpointLocation`, `processingTime` and
                `trigger`. The last two are an interval such as "2 seconds"; `trigger` may here also be
                "availableNow". The default checkpoint is a temporary folder, which is removed with the query.

        Raises:
            DisplayError: An option is unknown, or the DataFrame is no stream and was given one.
        """
        if is_dataframe(input) and cast("DataFrame", input).isStreaming:
            self._show_stream(cast("DataFrame", input), options)
            return
        if options:
            listed = ", ".join(sorted(options))
            raise DisplayError(
                f"display accepts {listed} for streaming DataFrames only",
                "use spark.readStream",
                options=listed,
            )
        if is_dataframe(input):
            self._show_rows(fetch_first(cast("DataFrame", input)))
        elif is_figure(input):
            self._show_figure(input)
        elif isinstance(input, list) and (names := field_names(input)):
            self._show_tuples(names, input)
        else:
            _publish(input)

    def html(self, html: str) -> None:
        """Show HTML; a notebook knows this as `displayHTML`."""
        _publish({"text/html": html, "text/plain": "<HTML>"}, raw=True)

    def begin_cell(self, cell: str | None) -> None:
        """Stop the streams that an earlier run of this cell shows."""
        self._streams.begin_cell(cell)

    def end_cells(self) -> None:
        """Wait after the last cell of a run for the first output of every stream.

        Raises:
            DisplayError: A stream failed.
        """
        for name in self._streams.awaited():
            sys.stdout.write(f"waiting for the displayed stream {name}\n")
        failed = self._streams.await_first(FIRST_BATCH_SECONDS)
        if failed:
            text = "; ".join(
                f"the displayed stream {stream.name} failed: {stream.failure}" for stream in failed
            )
            raise DisplayError(text, LOG_COMMAND, streams=tuple(stream.name for stream in failed))

    def stop_streams(self) -> None:
        """Stop every stream, and leave the last state of each in its output."""
        self._streams.stop(STOP_SECONDS)

    def _show_stream(self, frame: DataFrame, named_options: dict[str, object]) -> None:
        options = QueryOptions.read(named_options, lambda path: below_mounts(path, self._mounts()))
        stream = StreamDisplay(frame, options, NotebookOutput(_publish), self._redaction)
        self._streams.add(stream)
        stream.watch()

    def _show_tuples(self, names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
        kinds = ("bigint" if isinstance(value, int) else "string" for value in rows[0])
        self._show_rows(Fetched(list(zip(names, kinds, strict=True)), rows, sys.maxsize))

    def _show_rows(self, fetched: Fetched) -> None:
        rows, more = fitting(fetched.cells(self._redaction))
        columns = self._redaction.columns(fetched.columns)
        data = {"text/html": html_table(columns, rows, more), "text/plain": text_table(columns, rows, more)}
        _publish(data, raw=True)

    def _show_figure(self, figure: Any) -> None:  # noqa: ANN401 - plotly carries no types
        if self._draws_plotly:
            # Each cell may be cleared or run again, so that none can bring plotly.js for all.
            _publish({PLOTLY_MIME_TYPE: json.loads(figure.to_json()), "text/plain": "<figure>"}, raw=True)
            return
        # plotly.js has 4 MB, and once in a page is enough.
        page = figure.to_html(full_html=False, include_plotlyjs=not self._has_plotly)
        self._has_plotly = True
        self.html(page)


def is_dataframe(obj: object) -> bool:
    """Return whether it is a Spark DataFrame, classic or Connect, without importing PySpark."""
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and isinstance(obj, sql.DataFrame)


def is_figure(obj: object) -> bool:
    """Return whether it is a plotly figure."""
    return type(obj).__module__.startswith("plotly.") and hasattr(obj, "to_html")


def field_names(rows: Sequence[object]) -> tuple[str, ...]:
    """Return the names that all rows have as named tuples, such as `dbutils.fs.ls` returns; none if not."""
    kinds = {type(row) for row in rows}
    names: tuple[str, ...] = getattr(next(iter(kinds)), "_fields", ()) if len(kinds) == 1 else ()
    return names
