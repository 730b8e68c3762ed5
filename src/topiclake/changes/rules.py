"""The rules by which changes become rows of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from topiclake.errors import ConfigError, require_choice, require_known_columns
from topiclake.formats import envelope as envelopes

#: The table property that names the rules which the rows of a table depend on.
PROPERTY = "topiclake.changes"


@dataclass(frozen=True)
class ChangeRules:
    """The rules by which changes become rows; the names of Databricks' AUTO CDC.

    Attributes:
        keys: Columns that identify a row.
        envelope: `none`, `debezium` or `debezium_flat`.
        sequence_by: Columns that order the changes of a key, before partition and offset in Kafka.
        apply_as_deletes: A condition in SQL for changes that delete their row.
        apply_as_truncates: A condition in SQL for changes that delete all older rows.
        ignore_null_updates: Whether null in a change keeps the column's value; or the columns that do so.
        column_list: The table's columns; by default all.
        except_column_list: Columns that are not in the table.
    """

    keys: tuple[str, ...]
    envelope: str = envelopes.NONE
    sequence_by: tuple[str, ...] = ()
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    ignore_null_updates: bool | tuple[str, ...] = False
    column_list: tuple[str, ...] | None = None
    except_column_list: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the rules.

        Raises:
            ConfigError: A rule is unknown or missing, or two of them contradict each other.
        """
        require_choice("envelope", self.envelope, envelopes.ENVELOPES)
        if not self.keys:
            raise ConfigError("keys is empty", "keys=['<column>']", parameter="keys")
        if self.column_list is not None and self.except_column_list:
            _refuse("column_list", "it excludes except_column_list")
        if self.apply_as_truncates and not self.sequence_by:
            # A truncate has no key, so Kafka's partitions do not order it among the changes of keys.
            _refuse(
                "apply_as_truncates", "it needs sequence_by ('_kafka.offset' for a topic of one partition)"
            )

    @property
    def truncates(self) -> bool:
        """Whether a change may delete all older rows."""
        may_arrive = bool(self.apply_as_truncates) or self.envelope == envelopes.DEBEZIUM
        return may_arrive and bool(self.sequence_by)

    def is_in_table(self, column: str) -> bool:
        """Return whether a column of a change is in the table."""
        if column in self.keys:
            return True
        if self.column_list is not None:
            return column in self.column_list
        return column not in self.except_column_list

    def ignores_null(self, column: str) -> bool:
        """Return whether null in a change keeps the column's value."""
        ignored = self.ignore_null_updates
        return column not in self.keys and (ignored if isinstance(ignored, bool) else column in ignored)

    def require_columns(self, columns: list[str]) -> None:
        """Raise a ConfigError if a rule names a column that changes don't have."""
        rules = {
            "keys": self.keys,
            "column_list": self.column_list,
            "except_column_list": self.except_column_list,
            "ignore_null_updates": self.ignore_null_updates or (),
        }
        for parameter, names in rules.items():
            if isinstance(names, tuple):
                require_known_columns(parameter, names, columns)

    def identity(self, order: StructType) -> str:
        """Return the rules that the stored rows depend on, as JSON.

        Args:
            order: The fields of `_cdc` that order changes.
        """
        rules = {
            "keys": list(self.keys),
            "sequence_by": list(self.sequence_by),
            "order": order.simpleString(),
        }
        return json.dumps(rules)


def names(columns: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return names of columns, where one name may be a text."""
    return (columns,) if isinstance(columns, str) else tuple(columns or ())


def _refuse(parameter: str, problem: str) -> None:
    raise ConfigError(
        f"{parameter} is set: {problem}",
        f"change {parameter}",
        parameter=parameter,
        reason="contradiction",
    )
