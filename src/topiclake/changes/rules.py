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
        stored_as_scd_type: 1 for the newest row of each key, 2 for all versions of it.
        track_history_column_list: Columns whose change begins a version; by default all.
        track_history_except_column_list: Columns whose change begins none.
    """

    keys: tuple[str, ...]
    envelope: str = envelopes.NONE
    sequence_by: tuple[str, ...] = ()
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    ignore_null_updates: bool | tuple[str, ...] = False
    column_list: tuple[str, ...] | None = None
    except_column_list: tuple[str, ...] = ()
    stored_as_scd_type: int = 1
    track_history_column_list: tuple[str, ...] | None = None
    track_history_except_column_list: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the rules.

        Raises:
            ConfigError: A rule is unknown or missing, or two of them contradict each other.
        """
        require_choice("envelope", self.envelope, envelopes.ENVELOPES)
        if not self.keys:
            raise ConfigError("keys is empty", "keys=['<column>']", parameter="keys")
        if self.stored_as_scd_type not in (1, 2):
            raise ConfigError(
                f"stored_as_scd_type is {self.stored_as_scd_type}; allowed: 1, 2",
                "stored_as_scd_type=1",
                parameter="stored_as_scd_type",
                found=self.stored_as_scd_type,
            )
        if self.column_list is not None and self.except_column_list:
            _refuse("column_list", "it excludes except_column_list")
        if self.track_history_column_list is not None and self.track_history_except_column_list:
            _refuse("track_history_column_list", "it excludes track_history_except_column_list")
        if self.has_versions:
            self._require_versions()
        elif self.track_history_column_list is not None or self.track_history_except_column_list:
            _refuse("track_history_column_list", "it needs stored_as_scd_type=2")
        if self.apply_as_truncates and not self.sequence_by:
            # A truncate has no key, so Kafka's partitions do not order it among the changes of keys.
            _refuse(
                "apply_as_truncates", "it needs sequence_by ('_kafka.offset' for a topic of one partition)"
            )

    def _require_versions(self) -> None:
        if not self.sequence_by:
            _refuse("stored_as_scd_type", "2 needs sequence_by, whose values are the ends of versions")
        if self.apply_as_truncates:
            _refuse("apply_as_truncates", "it needs stored_as_scd_type=1")

    @property
    def has_versions(self) -> bool:
        """Whether the table has all versions of a row."""
        return self.stored_as_scd_type == 2

    @property
    def truncates(self) -> bool:
        """Whether a change may delete all older rows."""
        may_arrive = bool(self.apply_as_truncates) or self.envelope == envelopes.DEBEZIUM
        return may_arrive and bool(self.sequence_by) and not self.has_versions

    def is_in_table(self, column: str) -> bool:
        """Return whether a column of a change is in the table."""
        if column in self.keys:
            return True
        if self.column_list is not None:
            return column in self.column_list
        return column not in self.except_column_list

    def tracks(self, column: str) -> bool:
        """Return whether another value of a column begins a version."""
        if self.track_history_column_list is not None:
            return column in self.track_history_column_list
        return column not in self.track_history_except_column_list

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
            "track_history_column_list": self.track_history_column_list,
            "track_history_except_column_list": self.track_history_except_column_list,
        }
        for parameter, names in rules.items():
            if isinstance(names, tuple):
                require_known_columns(parameter, names, columns)

    def identity(self, order: StructType) -> str:
        """Return the rules that the stored rows depend on, as JSON.

        Args:
            order: The fields of `_cdc` that order changes.
        """
        rules: dict[str, object] = {
            "keys": list(self.keys),
            "sequence_by": list(self.sequence_by),
            # Without types: those of the table may become wider.
            "order": order.fieldNames(),
        }
        if self.has_versions:
            # All versions of a key are computed by the same columns.
            tracked, others = self.track_history_column_list, self.track_history_except_column_list
            rules |= {
                "stored_as_scd_type": 2,
                "track_history_column_list": None if tracked is None else sorted(tracked),
                "track_history_except_column_list": sorted(others),
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
