"""The columns of a table that truncates set to null."""

import pytest
from pyspark.sql.types import IntegerType, StructType

from topiclake.changes import tables
from topiclake.errors import ConfigError
from topiclake.sources.table_snapshot import TableSnapshot


def snapshot(*, nullable, within=True):
    """Return a table with a key, and with a struct whose field is null or not."""
    struct = StructType().add("a", IntegerType(), nullable=within)
    columns = StructType().add("id", IntegerType(), nullable=nullable).add("s", struct)
    return TableSnapshot(columns, {"delta.constraints.positive": "id IS NULL OR id > 0"})


@pytest.mark.parametrize(
    ("table", "constraint"),
    [
        (snapshot(nullable=False), "NOT NULL id"),
        (snapshot(nullable=True, within=False), "NOT NULL s.a"),
    ],
)
def test_a_table_with_columns_that_a_truncate_cannot_null_is_refused(table, constraint):
    with pytest.raises(ConfigError) as raised:
        tables._require_nullable("t", table)
    fields = {name: raised.value.fields[name] for name in ("reason", "constraint")}
    assert fields == {"reason": "truncates", "constraint": constraint}


def test_a_table_whose_columns_may_be_null_has_truncates():
    tables._require_nullable("t", snapshot(nullable=True))
