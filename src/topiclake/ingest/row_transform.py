"""A user's transform of decoded rows before they are written: it returns one row for each row.

Spark counts the rows of a job only when the job is done, and Delta commits at the end of a write. So
transformed rows are computed before they are written, and compared with the decoded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.delta import evolution
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.local_frame import local_frame
from topiclake.sources import constraints
from topiclake.sources.layout import KAFKA_COLUMN
from topiclake.streaming import failure, observation
from topiclake.streaming.row_cache import cached

#: Topics of a batch are written side by side, and a user's function may replace a temporary view.
_applying = Lock()

#: A function from rows to rows: one row for each row, with its `_kafka`.
Function = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class RowTransform:
    """The transform of a pipeline; picklable, for Spark Connect, if its function is.

    Attributes:
        function: The user's function.
        pipeline: The pipeline's name.
    """

    function: Function
    pipeline: str

    @property
    def name(self) -> str:
        """Name of the function."""
        return str(getattr(self.function, "__qualname__", type(self.function).__name__))

    def columns(self, spark: SparkSession, columns: StructType) -> StructType:
        """Return the columns of transformed rows, each nullable, for rows with `columns`.

        Raises:
            IngestError: The transform cannot be applied to such rows.
        """
        return delta.nullable(self.apply(local_frame(spark, [], columns)))

    def refusal(
        self,
        spark: SparkSession,
        other_columns: StructType,
        columns_refusal: Callable[[StructType], str | None],
        decoded: StructType,
    ) -> str | None:
        """Return why the table cannot take transformed rows of a schema version, or None if it can.

        Args:
            spark: The session.
            other_columns: The columns of rows in addition to those of values.
            columns_refusal: Returns why the table cannot take columns, or None if it can.
            decoded: The columns of values.
        """
        try:
            columns = self.columns(spark, StructType([*decoded.fields, *other_columns.fields]))
        except IngestError:
            # A newer version may have the columns that the transform needs.
            return None
        return columns_refusal(columns)

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return the transformed rows, without executing anything.

        Raises:
            IngestError: The transform cannot be applied, returns no DataFrame, or changes `_kafka`.
        """
        try:
            with _applying:
                transformed = self.function(rows)
        except Exception as error:
            raise self.error(
                f"cannot be applied to the columns {', '.join(rows.columns)}: "
                f"{type(error).__name__}: {failure.last_cause(str(error))}",
                "use columns that the rows have",
                reason="not_applicable",
            ) from error
        if not isinstance(transformed, DataFrame):
            raise self.error(
                f"returned {type(transformed).__name__}, where a DataFrame is expected",
                "return the transformed rows",
                reason="no_dataframe",
            )
        expected, actual = _kafka_type(rows), _kafka_type(transformed)
        if expected != actual:
            raise self.error(
                f"returned {actual} as {KAFKA_COLUMN}, where {expected} is expected",
                f"keep the column {KAFKA_COLUMN} as it is, since an audit finds each record by it",
                reason="kafka_column",
            )
        return transformed

    @contextmanager
    def computed(self, rows: DataFrame, table: StructType, unit: str) -> Iterator[DataFrame]:
        """Compute the transformed rows, and cache them while they are written.

        Args:
            rows: Valid rows.
            table: The columns that the table has.
            unit: Name of the rows in errors: a batch or a claim.

        Raises:
            IngestError: The transform fails, or changed the number of rows or their `_kafka`.
        """
        read = Observation()
        transformed = self.apply(rows.observe(read, *_content(rows)))
        with cached(
            constraints.with_required(evolution.cast_to_table(transformed, table), table)
        ) as cast_rows:
            after = self._run(cast_rows, rows, unit)
            before = observation.counts(f"transform {self.name} has computed {unit}", read) or _first(rows)
            if before != after:
                change = f"made {after['rows']} rows of {before['rows']}"
                if before["rows"] == after["rows"]:
                    change = f"changed {KAFKA_COLUMN} of rows"
                raise self.error(
                    f"{change} in {unit}, of which nothing is written",
                    f"return one row for each row, with its {KAFKA_COLUMN}; filter in a view of the table",
                    unit=unit,
                    expected=before["rows"],
                    actual=after["rows"],
                    reason="rows_changed",
                )
            yield cast_rows

    def _run(self, cast_rows: DataFrame, rows: DataFrame, unit: str) -> dict[str, Any]:
        try:
            return _first(cast_rows)
        except (PySparkException, Py4JError) as error:
            # An error of Kafka, or of a refused record, is raised without the transform, too.
            _first(rows)
            raise self.error(
                f"failed in {unit}, of which nothing is written: {failure.last_cause(str(error))}",
                "change the transform, and start again: the same rows come again",
                unit=unit,
                reason="failed",
            ) from error

    def error(self, problem: str, remedy: str, **fields: object) -> IngestError:
        """Return an error that names the transform."""
        cause = f"transform {self.name} of pipeline {self.pipeline} {problem}"
        return IngestError(cause, remedy, pipeline=self.pipeline, transform=self.name, **fields)


def _kafka_type(rows: DataFrame) -> str:
    return rows.schema[KAFKA_COLUMN].dataType.simpleString() if KAFKA_COLUMN in rows.columns else "no column"


def _content(rows: DataFrame) -> list[Column]:
    """Return aggregates that count rows and hash their records, in any order of the rows."""
    record = F.xxhash64(KAFKA_COLUMN) if KAFKA_COLUMN in rows.columns else F.lit(0)
    return [F.count("*").alias("rows"), F.bit_xor(record).alias("kafka")]


def _first(rows: DataFrame) -> dict[str, Any]:
    return rows.agg(*_content(rows)).collect()[0].asDict()
