"""The changes of a pipeline with `apply: upsert`: how decoded rows change the rows of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from topiclake.changes import tables
from topiclake.changes.batch import Changes, resolved
from topiclake.changes.rows import REASON_FIELD, ChangeRows
from topiclake.changes.rules import ChangeRules
from topiclake.config.changes import NONE, ChangeSettings
from topiclake.errors import ConfigError
from topiclake.formats import envelope as envelopes
from topiclake.local_frame import local_frame
from topiclake.reasons import TOMBSTONE
from topiclake.sources.layout import KEY_COLUMN
from topiclake.streaming import failure

#: The keys of the configuration by the parameters of `apply_changes`.
_KEYS = {
    "keys": "changes.keys",
    "envelope": "changes.envelope",
    "sequence_by": "changes.order",
    "apply_as_truncates": "changes.truncates",
    "ignore_null_updates": "changes.ignore_null_updates",
    "column_list": "changes.columns",
    "except_column_list": "changes.except_columns",
    "track_history_column_list": "changes.history_columns",
    "track_history_except_column_list": "changes.except_history_columns",
}


@dataclass(frozen=True)
class RowChanges:
    """The rules of a pipeline by which decoded rows change the rows of its table.

    Attributes:
        settings: The configuration.
        pipeline: The pipeline's name.
    """

    settings: ChangeSettings
    pipeline: str

    def rules(self, decoded: StructType) -> ChangeRules:
        """Return the rules for rows with these columns.

        Raises:
            ConfigError: The record's key has no fields, or not those that a record without a value needs.
        """
        settings = self.settings
        self._require_keys_of_tombstones(envelopes.key_names(decoded, KEY_COLUMN))
        with self._named():
            return ChangeRules(
                keys=settings.keys or envelopes.key_names(decoded, KEY_COLUMN),
                envelope=settings.envelope,
                sequence_by=settings.order,
                apply_as_deletes=None if settings.deletes in (TOMBSTONE, NONE) else settings.deletes,
                apply_as_truncates=settings.truncates,
                ignore_null_updates=settings.ignore_null_updates,
                column_list=settings.columns or None,
                except_column_list=settings.except_columns,
                stored_as_scd_type=settings.scd_type,
                track_history_column_list=settings.history_columns or None,
                track_history_except_column_list=settings.except_history_columns,
            )

    def columns(self, spark: SparkSession, decoded: StructType) -> StructType:
        """Return the columns of the table of decoded rows.

        Raises:
            ConfigError: A rule names a column that the rows don't have, or SQL does not accept a condition.
        """
        _, columns = self._rows(local_frame(spark, [], decoded))
        return columns

    def refusal(
        self,
        spark: SparkSession,
        other_columns: StructType,
        columns_refusal: Callable[[StructType], str | None],
        decoded: StructType,
    ) -> str | None:
        """Return why the table cannot take the rows of a schema version, or None if it can.

        Args as for `RowTransform.refusal`.
        """
        try:
            columns = self.columns(spark, StructType([*decoded.fields, *other_columns.fields]))
        except ConfigError:
            # A newer version may have the columns that the rules name.
            return None
        return columns_refusal(columns)

    def ensure(
        self, spark: SparkSession, table: str, decoded: StructType, properties: Mapping[str, str]
    ) -> None:
        """Create the table, or check that the existing one has rows by the same rules.

        Raises:
            ConfigError: It does not, or the rules do not fit the rows.
            StorageError: The folder of the table has other files.
        """
        rows, columns = self._rows(local_frame(spark, [], decoded))
        tables.ensure(spark, table, columns, rows, properties)

    def count_reasons(self, rows: DataFrame) -> dict[str, int]:
        """Count decoded rows that are no usable change, by reason; executes one job."""
        prepared = ChangeRows.of(rows, self.rules(rows.schema)).prepare(rows)
        bad = prepared.where(F.col(REASON_FIELD).isNotNull()).groupBy(F.col(REASON_FIELD).alias("reason"))
        return {row["reason"]: row["count"] for row in bad.count().collect()}

    def resolved(self, rows: DataFrame, table: str) -> AbstractContextManager[Changes]:
        """Compute the newest changes of decoded rows for a table, as `changes.batch.resolved`."""
        return resolved(rows, table, self.rules(rows.schema))

    def _rows(self, rows: DataFrame) -> tuple[ChangeRows, StructType]:
        rules = self.rules(rows.schema)
        with self._named():
            changes = ChangeRows.of(rows, rules)
        try:
            return changes, changes.table_schema(rows)
        except PySparkException as error:
            raise ConfigError(
                f"changes.deletes or changes.truncates of pipeline {self.pipeline} is no condition of the "
                f"columns {', '.join(rows.columns)}: {failure.last_cause(str(error))}",
                "correct the condition",
                key="changes",
                reason="condition",
            ) from None

    def _require_keys_of_tombstones(self, fields: tuple[str, ...]) -> None:
        settings = self.settings
        missing = tuple(key for key in settings.keys if key not in fields)
        if settings.envelope == envelopes.NONE and settings.deletes == TOMBSTONE and fields and missing:
            raise ConfigError(
                f"changes.keys of pipeline {self.pipeline} names {', '.join(missing)}, but the record's key "
                f"has only {', '.join(fields)}: a record without a value could not delete its row",
                "name fields of the record's key, or set changes.deletes to none or to a condition",
                parameter="changes.keys",
                column=missing[0],
                found=fields,
                reason="tombstones",
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the key of the configuration in errors."""
        try:
            yield
        except ConfigError as error:
            parameter = str(error.fields.get("parameter"))
            key = _KEYS.get(parameter, parameter)
            fields = error.fields | {"parameter": key}
            raise ConfigError(
                error.cause.replace(parameter, key), error.remedy.replace(parameter, key), **fields
            ) from None
