"""Numbers for generated rows: the same for the same seed, in whatever order Spark generates the rows."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def hash_random(purpose: str, seed: int, bound: int, *parts: Column) -> Column:
    """Draw a number from 0 on for each `id`, or for each value of `parts`, independently for each purpose."""
    return F.pmod(F.xxhash64(F.lit(purpose), F.lit(seed), "id", *parts), F.lit(bound).cast("bigint"))
