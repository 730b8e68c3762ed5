"""The ranges of keys by which Delta skips files."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from topiclake.changes.lookup import within

LONG = StructType([StructField("id", LongType())])


@pytest.mark.parametrize(
    ("least", "greatest", "expected"),
    [
        ("3", "3", "`id` BETWEEN 3L AND 3L"),
        ("-7", "8", "`id` BETWEEN -7L AND 8L"),
        ("-1000", "1000", "`id` BETWEEN -1024L AND 1023L"),
        (
            "-9223372036854775808",
            "9223372036854775807",
            "`id` BETWEEN -9223372036854775808L AND 9223372036854775807L",
        ),
    ],
)
def test_a_range_of_numbers_has_all_of_them_and_ends_within_the_type(least, greatest, expected):
    assert within(LONG, ["id"], [least, greatest]) == [expected]


def test_batches_of_keys_of_the_same_table_have_the_same_range():
    """Spark compiles its code again for each other range."""
    batches = [("57", "999944"), ("1", "999999"), ("120", "999100")]
    assert {tuple(within(LONG, ["id"], batch)) for batch in batches} == {("`id` BETWEEN 0L AND 1048575L",)}


def test_the_range_of_texts_is_exact():
    texts = StructType([StructField("id", StringType())])
    assert within(texts, ["id"], ["a1", "b2"], "old.") == ["old.`id` BETWEEN 'a1' AND 'b2'"]


def test_a_batch_without_keys_has_no_range():
    assert within(LONG, ["id"], [None, None]) == []
