"""The configuration of `apply: upsert`: how the records of a topic change the rows of a table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from topiclake.config.secret import Section
from topiclake.config.source import Text, listed
from topiclake.reasons import TOMBSTONE

#: The word of `deletes` for no record. Any value but this one and `tombstone` is a condition in SQL.
NONE = "none"


def as_list(value: object) -> object:
    """Accept names with commas between them, as a widget's value has them."""
    return tuple(listed(value)) if isinstance(value, str) else value


Names = Annotated[tuple[Text, ...], BeforeValidator(as_list)]


class ChangeSettings(Section):
    """How records change rows, with `apply: upsert`. Only a file sets it: conditions in SQL may run code."""

    #: The form of values. `none`: a value is a row. `debezium`: `before`, `after`, `op` and `source` of
    #: Debezium. `debezium_flat`: rows of Debezium's ExtractNewRecordState.
    envelope: Literal["none", "debezium", "debezium_flat"] = "none"
    #: The columns that identify a row. Empty: the fields of the record's key, which `key` decodes.
    keys: Names = ()
    #: Columns that order the changes of a key, before partition and offset, such as `source.lsn`. Set it if a
    #: key may be in several partitions.
    order: Names = ()
    #: Changes that delete their row, in addition to Debezium's. `tombstone`: records without a value. `none`:
    #: no record. Any other value is a condition in SQL, such as `op = 'd'`.
    deletes: Text = TOMBSTONE
    #: A condition in SQL for changes that delete all older rows, in addition to Debezium's; needs `order`.
    truncates: Text | None = None
    #: Whether null in a change keeps the value of the row; or the columns for which it does.
    ignore_null_updates: bool | tuple[Text, ...] = False
    #: The columns of the table. Empty: all. Keys are always among them.
    columns: Names = ()
    #: Columns of records that the table does not have.
    except_columns: Names = ()
    #: 1: the table has the newest row of each key. 2: it has all versions of each row, with `__START_AT` and
    #: `__END_AT`; needs `order`.
    scd_type: Literal[1, 2] = 1
    #: Columns whose change begins a version. Empty: all.
    history_columns: Names = ()
    #: Columns whose change begins no version.
    except_history_columns: Names = ()
    #: Days that the table keeps a deletion. Each hundredth batch removes older ones. Without it, only
    #: `purge_changes` removes deletions. It must be longer than changes can be late or wait in quarantine.
    retention_days: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> ChangeSettings:
        if self.columns and self.except_columns:
            raise ValueError("columns excludes except_columns; set one of them")
        if self.history_columns and self.except_history_columns:
            raise ValueError("history_columns excludes except_history_columns; set one of them")
        if self.scd_type == 2:
            self._check_versions()
        elif self.history_columns or self.except_history_columns:
            raise ValueError("history_columns and except_history_columns belong to scd_type 2")
        if self.truncates and not self.order:
            raise ValueError(
                "truncates needs order, since a truncate has no key and its partition does not order it; set "
                "'_kafka.offset' for a topic of one partition"
            )
        if self.deletes == NONE and self.envelope != "none":
            raise ValueError(
                "deletes: none belongs to envelope none, since Debezium's records say what they delete"
            )
        return self

    def _check_versions(self) -> None:
        if not self.order:
            raise ValueError("scd_type 2 needs order, whose values are the ends of versions")
        for name in ("truncates", "retention_days"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} belongs to scd_type 1")

    @property
    def keeps_tombstones(self) -> bool:
        """Whether a record without a value is a change."""
        return self.deletes == TOMBSTONE or self.envelope != "none"
