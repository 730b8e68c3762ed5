"""What Spark keeps of a streaming query in its checkpoint: `metadata`, `offsets/<batch>`, `commits/<batch>`.

Read through Spark, since a checkpoint may live on an object store.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

#: No batch yet.
NONE = -1


def query_id(spark: SparkSession, path: str) -> str:
    """Return the id that Spark gave the checkpoint, so that a new one never looks like an old one."""
    metadata = spark.read.schema("id STRING").json(f"{path}/metadata").collect()
    return str(metadata[0][0])


def last_planned(spark: SparkSession, path: str) -> int:
    """Return the newest batch whose offsets are fixed; NONE where there is none."""
    return _newest(spark, f"{path}/offsets")


def last_committed(spark: SparkSession, path: str) -> int:
    """Return the newest batch that is done; NONE where there is none."""
    return _newest(spark, f"{path}/commits")


def is_interrupted(spark: SparkSession, path: str) -> bool:
    """Tell whether the checkpoint holds a batch that was begun and not done."""
    planned = last_planned(spark, path)
    return planned != NONE and last_committed(spark, path) < planned


def _newest(spark: SparkSession, folder: str) -> int:
    """Return the greatest number among the names of the files in `folder`; their content is not read."""
    try:
        files = spark.read.format("binaryFile").load(folder)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return NONE
        raise
    number = F.regexp_extract("path", r"/(\d+)$", 1)
    newest = files.where(number != "").agg(F.max(number.cast("int"))).collect()[0][0]
    return NONE if newest is None else int(newest)
