"""An ingest in a Spark that logs all it can, and every view of it: where a secret could show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import SparkSession

from topiclake.config.load import load_settings
from topiclake.config.settings import Settings
from topiclake.ingest.start import start_ingest
from topiclake.kafka import source
from topiclake.session import local_session
from topiclake.storage.mount import mount
from workbench.dbutils import DBUtils

PROJECT = Path(__file__).parents[2]

show = partial(print, flush=True)

#: Kafka's clients print their whole configuration at INFO, Spark's source its options at DEBUG.
_CHATTY_LOG = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.source.name = org.apache.spark.sql.kafka010
logger.source.level = debug
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


def chatty(folder: Path) -> str:
    """Configure the log `driver.log` in a new folder; return the code that has Spark use it."""
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "log4j2.properties").write_text(_CHATTY_LOG.format(file=folder / "driver.log"))
    return f"import os; os.environ['SPARK_CONF_DIR'] = {str(folder / 'conf')!r}"


@contextmanager
def shown(
    folder: Path, pipeline: str, given: Mapping[str, str], read_secret: Callable[[str, str], str]
) -> Iterator[tuple[SparkSession, Settings]]:
    """Run an ingest of the project in the working directory, and print every view of it.

    Args:
        folder: Gets the event log and Spark's own files.
        pipeline: The pipeline's name.
        given: Its parameters.
        read_secret: As `dbutils.secrets.get`.
    """
    paths = {
        "table_path": "/mnt/datalake/delta/probe",
        "checkpoint_path": "/mnt/datalake/checkpoints/probe",
    }
    settings = load_settings(pipeline, {"trigger": "1 second", **paths, **given}, secrets=read_secret)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.local.dir": str(folder / "local"),
    }
    spark = local_session("probe", PROJECT / "jars", conf)
    mount(DBUtils(folder, Path.cwd()), settings.storage)
    query = start_ingest(spark, settings)
    query.processAllAvailable()
    show("== plan of the query")
    query.explain(extended=True)
    show(query.lastProgress.json)
    for mode in ("extended", "cost", "formatted"):
        show(f"== {mode} plan of the source")
        source.read_topic(spark, settings.kafka, settings.pipeline).explain(mode)
    options = source.reader_options(settings.kafka, settings.pipeline)
    batch = spark.read.format("kafka").options(**options).load()
    batch.explain("extended")
    show("== batch rows", batch.count())
    for row in spark.sql("SET -v").collect() + spark.sql("SET").collect():
        show(row["key"], row["value"])
    show("== ui")
    for page in _ui_pages(str(spark.sparkContext.uiWebUrl), str(spark.sparkContext.applicationId)):
        show(page)
    query.stop()
    yield spark, settings
    spark.stop()


def _ui_pages(url: str, application: str) -> Iterator[str]:
    paths = ["environment/", "SQL/", "StreamingQuery/", "jobs/", "stages/"]
    paths += [f"SQL/execution/?id={number}" for number in range(3)]
    paths += [f"api/v1/applications/{application}/{name}" for name in ("environment", "sql?details=true")]
    for path in paths:
        with urlopen(f"{url}/{path}", timeout=120) as answer:
            yield f"== {path}\n{answer.read().decode()}"
