"""The rules of a pipeline with `apply: upsert`, by the columns of its records."""

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from topiclake.changes.pipeline import RowChanges
from topiclake.config.changes import ChangeSettings
from topiclake.errors import ConfigError

KEY = StructType().add("id", IntegerType())


def rules(key, **changes):
    decoded = StructType().add("sensor", StringType())
    if key is not None:
        decoded = decoded.add("_key", key)
    return RowChanges(ChangeSettings(**changes), "shop").rules(decoded)


@pytest.mark.parametrize("key", [KEY, StructType().add("payload", KEY)])
def test_a_record_without_a_value_has_all_keys_of_the_row_that_it_deletes(key):
    with pytest.raises(ConfigError) as raised:
        rules(key, keys=["id", "sensor"])
    fields = {name: raised.value.fields[name] for name in ("reason", "column", "found")}
    assert fields == {"reason": "tombstones", "column": "sensor", "found": ("id",)}
    assert rules(key).keys == ("id",)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (KEY, {"deletes": "none"}),
        (KEY, {"deletes": "sensor = 'x'"}),
        (KEY, {"envelope": "debezium_flat"}),
        (StringType(), {}),
        (None, {}),
    ],
)
def test_other_changes_may_have_their_keys_in_the_value(key, changes):
    assert rules(key, keys=["sensor"], **changes).keys == ("sensor",)
