"""Numbers for generated rows: the same for the same seed, in whatever order Spark generates the rows."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def hash_random(purpose: str, seed: int, below: int, *of: Column) -> Column:
    """Draw a number from 0 on for each `id`, or for each part `of` it, independently for each purpose."""
    return F.pmod(F.xxhash64(F.lit(purpose), F.lit(seed), "id", *of), F.lit(below).cast("bigint"))
