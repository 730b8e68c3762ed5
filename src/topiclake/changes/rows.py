"""Changes as rows of their table: columns, order, operation, and the reason of a rejected change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from topiclake.changes.order import CDC_COLUMN, Order
from topiclake.changes.rules import ChangeRules
from topiclake.delta.table import quoted
from topiclake.formats import envelope as envelopes
from topiclake.formats.envelope import DELETE, SKIP, TRUNCATE, UPSERT, WITHOUT_VALUE, Envelope
from topiclake.reasons import NO_KEY, NO_ORDER, UNDECODABLE
from topiclake.sources.layout import HEADERS_COLUMN, KAFKA_COLUMN, KEY_COLUMN, TOMBSTONE_COLUMN

#: The column of a change that its table does not have: `STRUCT<operation STRING, reason STRING,
#: detail STRING, unavailable ARRAY<STRING>, row_json STRING, old_key STRUCT<…>>`.
CHANGE_COLUMN = "_change"
OPERATION_FIELD, REASON_FIELD = f"{CHANGE_COLUMN}.operation", f"{CHANGE_COLUMN}.reason"
DETAIL_FIELD = f"{CHANGE_COLUMN}.detail"
#: The key of the row before a change of the primary key. The field is missing if rows have no `_headers`.
OLD_KEY = f"{CHANGE_COLUMN}.old_key"
DELETED, DELETED_AT = "deleted", "deleted_at"
#: Columns of a version in a table of SCD type 2: the values of `sequence_by` of its first change, and of the
#: change after it.
START, END = "__START_AT", "__END_AT"
#: Fields of `_cdc` in such a table. A hidden change is equal to the next one. Kept columns have the value of
#: the change before. The third field is the start of the change itself.
HIDDEN, KEPT, OWN_START = "hidden", "kept", "start"

#: Columns of rows while they are prepared.
_IS_KEYLESS, _OPERATION, _UNAVAILABLE = (
    f"{CHANGE_COLUMN}_{name}" for name in ("is_keyless", "operation", "unavailable")
)
_TECHNICAL = (KAFKA_COLUMN, KEY_COLUMN, HEADERS_COLUMN, TOMBSTONE_COLUMN)


@dataclass(frozen=True)
class ChangeRows:
    """The columns of changes.

    Attributes:
        rules: The rules by which changes become rows.
        order: The order of the changes of a key.
        envelope: The meaning of the rows of the stream as changes.
    """

    rules: ChangeRules
    order: Order
    envelope: Envelope

    @classmethod
    def of(cls, rows: DataFrame, rules: ChangeRules) -> ChangeRows:
        """Return the columns of a stream's changes.

        Raises:
            ConfigError: A rule names a column that the rows don't have, or that has no order. Rows do not
                have the envelope.
        """
        schema = envelopes.opened(rows, rules.envelope).schema
        envelope = envelopes.read(
            rules.envelope, schema, KEY_COLUMN, TOMBSTONE_COLUMN, HEADERS_COLUMN, _TECHNICAL
        )
        order = Order.of(schema, rules.sequence_by, KAFKA_COLUMN)
        rules.require_columns(
            [*envelope.fields, *(key for key in envelope.keys if key not in envelope.fields)]
        )
        return cls(rules, order, envelope)

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Return the changes with the columns of their table, `_cdc` and `_change`.

        Columns of a deletion are null, except keys and `_cdc`. So are unavailable values and the keys of a
        truncate.
        """
        rows, envelope = envelopes.opened(rows, self.rules.envelope), self.envelope
        keys = {key: self._key(key) for key in self.rules.keys}
        is_keyless = reduce(Column.__or__, (column.isNull() for column in keys.values()))
        kinds = rows.select(*(column.alias(name) for name, column in envelope.fields.items())).schema
        unavailable = self._unavailable(kinds) if envelope.has_unavailable else {}
        whole_row = F.struct(*map(named, rows.columns))
        # Each column depends on these. Spark would analyze, optimize and compile a copy of them for each.
        rows = rows.select(
            "*",
            is_keyless.alias(_IS_KEYLESS),
            self._operation(is_keyless).alias(_OPERATION),
            _names([F.when(is_it, F.lit(name)) for name, is_it in unavailable.items()]).alias(_UNAVAILABLE),
        )
        operation, found = F.col(_OPERATION), F.col(_UNAVAILABLE)
        reason, detail = self._reason(operation, F.col(_IS_KEYLESS))
        is_deletion = operation.isin(DELETE, TRUNCATE)
        is_known = ~F.coalesce(is_deletion, F.lit(False))
        # The row of a truncate has no keys.
        has_row_key = ~operation.eqNullSafe(TRUNCATE) if self.rules.truncates else F.lit(True)
        columns = [F.when(has_row_key, column).alias(name) for name, column in keys.items()]
        for name, column in envelope.fields.items():
            if name not in keys and self.rules.is_in_table(name):
                is_given = is_known & ~F.array_contains(found, name) if name in unavailable else is_known
                columns.append(F.when(is_given, column).alias(name))
        change = [
            operation.alias("operation"),
            reason.alias("reason"),
            detail.alias("detail"),
            F.when(operation == UPSERT, found).otherwise(_names([])).alias("unavailable"),
            # Only changes that may be rejected need it.
            F.when(reason.isNotNull() | (F.size(found) > 0), F.to_json(whole_row)).alias("row_json"),
        ]
        if envelope.old_key is not None:
            kinds = rows.select(*(column.alias(name) for name, column in keys.items())).schema
            change.append(F.from_json(envelope.old_key, _nullable(kinds)).alias("old_key"))
        cdc = [*self.order.values(), *self._deletion(is_deletion)]
        if self.rules.has_versions:
            columns.append(self._start().alias(START))
            cdc += [F.lit(False).alias(HIDDEN), _names([]).alias(KEPT), self._start().alias(OWN_START)]
        return rows.select(*columns, F.struct(*cdc).alias(CDC_COLUMN), F.struct(*change).alias(CHANGE_COLUMN))

    def table_schema(self, rows: DataFrame) -> StructType:
        """Return the columns of the table that the changes of a stream need."""
        prepared = self.prepare(rows).drop(CHANGE_COLUMN)
        schema = _nullable(prepared.schema)
        if self.rules.has_versions:
            end = StructField(END, schema[START].dataType)
            schema = StructType([*schema.fields[:-1], end, schema.fields[-1]])
        return schema

    def _operation(self, is_keyless: Column) -> Column:
        operation = self.envelope.operation
        for condition, meaning in (
            (self.rules.apply_as_truncates, TRUNCATE),
            (self.rules.apply_as_deletes, DELETE),
        ):
            if condition is not None:
                is_it = (self.envelope.operation == UPSERT) & F.coalesce(F.expr(condition), F.lit(False))
                operation = F.when(is_it, meaning).otherwise(operation)
        # A tombstone has no columns. Without a key or an order, only the delete before it can be applied.
        of_tombstone = F.when(is_keyless | self.order.is_missing(), SKIP).otherwise(DELETE)
        return F.when(operation == WITHOUT_VALUE, of_tombstone).otherwise(operation)

    def _key(self, key: str) -> Column:
        fields = self.envelope.fields
        return F.coalesce(*([fields[key]] if key in fields else []), *self.envelope.keys.get(key, ()))

    def _unavailable(self, kinds: StructType) -> dict[str, Column]:
        found = {}
        for name, column in self.envelope.fields.items():
            is_it = envelopes.is_unavailable(column, kinds[name].dataType)
            if is_it is not None and name not in self.rules.keys and self.rules.is_in_table(name):
                found[name] = is_it
        return found

    def _reason(self, operation: Column, is_keyless: Column) -> tuple[Column, Column]:
        needs_key = operation.isin(UPSERT, DELETE)
        needs_order = operation.isin(UPSERT, DELETE, TRUNCATE)
        is_lost_truncate = (operation == TRUNCATE) & F.lit(not self.rules.truncates)
        no_order = needs_order & self.order.is_missing()
        names = ", ".join((*self.rules.sequence_by, *(self.order.position or ())))
        found: list[tuple[Column, str, str]] = [
            (
                operation.isNull(),
                UNDECODABLE,
                "the change has an unknown operation, or neither one nor a row",
            ),
            (needs_key & is_keyless, NO_KEY, f"one of {', '.join(self.rules.keys)} is null"),
            (no_order, NO_ORDER, f"one of {names} is null"),
            (is_lost_truncate, NO_ORDER, "a truncate needs sequence_by and SCD type 1"),
        ]
        reason, detail = F.lit(None).cast("string"), F.lit(None).cast("string")
        for condition, code, text in reversed(found):
            reason = F.when(condition, code).otherwise(reason)
            detail = F.when(condition, text).otherwise(detail)
        return reason, detail

    def _start(self) -> Column:
        """Return the start of a version: the column of `sequence_by`, or a struct if there are several."""
        columns = [F.col(path) for path in self.rules.sequence_by]
        if len(columns) == 1:
            return columns[0]
        names = (name for _, name, _ in self.order.fields)
        return F.struct(*(column.alias(name) for column, name in zip(columns, names, strict=True)))

    @staticmethod
    def _deletion(is_deletion: Column) -> list[Column]:
        deleted = F.coalesce(is_deletion, F.lit(False))
        return [deleted.alias(DELETED), F.when(deleted, F.current_timestamp()).alias(DELETED_AT)]


def named(name: str) -> Column:
    """Return a column by its name, which may have dots."""
    return F.col(quoted(name))


def _nullable(kind: StructType) -> StructType:
    """Return a type whose fields are nullable: a user's older rows have no `_cdc`."""
    return StructType(
        [
            StructField(
                field.name,
                _nullable(field.dataType) if isinstance(field.dataType, StructType) else field.dataType,
            )
            for field in kind
        ]
    )


def _names(found: list[Column]) -> Column:
    """Return the names that are not null."""
    if not found:
        return F.array().cast("array<string>")
    return F.array_distinct(F.filter(F.array(*found), lambda name: name.isNotNull()))


def data_columns(schema: StructType, keys: tuple[str, ...]) -> dict[str, DataType]:
    """Return the columns of changes that are neither keys nor of Topiclake."""
    others = {name.lower() for name in (*keys, CDC_COLUMN, CHANGE_COLUMN, START, END)}
    return {field.name: field.dataType for field in schema if field.name.lower() not in others}
