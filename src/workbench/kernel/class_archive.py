"""Make the archive of Spark's classes, with which each later start of Spark takes a third less.

python -m workbench.kernel.class_archive jars
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from topiclake.session import ARCHIVE_OPTIONS, CLASS_ARCHIVE, spark_conf
from workbench.host.java import OPTIONS_VARIABLE, short_lived
from workbench.kernel.session import SUBMITTED_VARIABLES, NotebookSession
from workbench.services.spark_cluster import MASTER_VARIABLE


def main(jars_folder: Path) -> None:
    """Start Spark once, have it do a little of everything, and keep the classes that it loaded.

    The JVM writes the archive when it ends. If it cannot, no archive exists, and Spark starts as before.
    """
    jars_folder = jars_folder.resolve()
    archive = jars_folder / CLASS_ARCHIVE
    archive.unlink(missing_ok=True)
    # A separate JVM, without a cluster: the archive is written by the JVM that this process ends.
    for name in (*SUBMITTED_VARIABLES, MASTER_VARIABLE):
        os.environ.pop(name, None)
    os.environ[OPTIONS_VARIABLE] = short_lived()[OPTIONS_VARIABLE]
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=archive.parent) as name:
        folder, draft = Path(name), Path(name) / archive.name
        session = NotebookSession("class-archive", folder, jars_folder, conf=_dumping(draft))
        spark = session.start()
        table = str(folder / "table")
        for _ in range(2):
            rows = spark.range(1000).selectExpr("id", "id % 7 AS key", "cast(id AS STRING) AS text")
            rows.write.format("delta").mode("append").save(table)
        spark.read.format("delta").load(table).groupBy("key").count().orderBy("key").collect()
        query = (
            spark.readStream.format("delta")
            .load(table)
            .writeStream.format("delta")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "copy"))
        )
        query.awaitTermination()
        session.stop(seconds=60)
        if draft.exists():
            os.replace(draft, archive)


def _dumping(draft: Path) -> dict[str, str]:
    options = spark_conf()["spark.driver.extraJavaOptions"]
    return {
        "spark.driver.extraJavaOptions": f'{options} "-XX:ArchiveClassesAtExit={draft}" {ARCHIVE_OPTIONS}'
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
