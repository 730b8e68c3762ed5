"""The notebook's Spark session, which starts when a cell first names it."""

from __future__ import annotations

import ast
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from topiclake.session import local_session, spark_conf
from workbench.dbutils import dbfs
from workbench.host.java import FEW_ROWS_VARIABLE, LATE_COMPILED, more_options
from workbench.services.azurite import JAVA_OPTIONS_VARIABLE
from workbench.services.spark_cluster import (
    MASTER_VARIABLE,
    PROPERTIES_VARIABLE,
    SUBMIT_ARGUMENTS,
    submit_arguments,
)

#: By default the first notebook occupies the whole cluster, and the second one waits until the first ends.
CLUSTER_SHARE = {"spark.executor.cores": "1", "spark.cores.max": "2"}

#: Spark compiles no class for a plan, and interprets it.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
#: A few rows need one task and one file. Each further one costs more than its rows.
ONE_TASK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # It runs each shuffle as a job and plans again after it, to choose what is one here.
    "spark.sql.adaptive.enabled": "false",
}

#: The value `hive` makes names of tables persist between runs.
CATALOG_VARIABLE = "WORKBENCH_CATALOG"

#: By these variables spark-submit passes the address and the secret of its JVM to the program.
SUBMITTED_VARIABLES = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")

#: A cell that reads one of these needs Spark.
SPARK_NAMES = frozenset({"spark", "SparkSession"})

#: These would make Spark take another Python, another Spark or other settings than the project's.
FOREIGN_VARIABLES = (
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_DRIVER_PYTHON_OPTS",
    SUBMIT_ARGUMENTS,
    "PYTHONSTARTUP",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_REMOTE",
)

#: Spark logs to a file: the notebook shows the causing error, and not each task's stack. The second logger
#: suppresses Spark's message about the log level of a shell.
LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${env:WORKBENCH_SPARK_LOG}
appender.file.filePattern = ${env:WORKBENCH_SPARK_LOG}.%i
appender.file.filePermissions = rw-------
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = warn
"""

STOP_SECONDS = 15.0


class NotebookSession:
    """Starts Spark once, on demand, and stops it with its JVM.

    A process of spark-submit has a JVM already, whose settings win over those of this class. This JVM
    outlives the session. Other child processes do not receive its address.

    Args:
        app_name: Shown by Spark.
        home_folder: The workbench's state folder; holds the warehouse.
        jars_folder: The folder of the jars by module.
        on_start: Called with the new session, before any cell sees it.
        conf: Settings on top of all others.
    """

    def __init__(
        self,
        app_name: str,
        home_folder: Path,
        jars_folder: Path,
        on_start: Callable[[SparkSession], None] = lambda spark: None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._app_name = app_name
        self._home_folder = home_folder
        self._jars_folder = jars_folder
        self._on_start = on_start
        self._extra_conf = dict(conf or {})
        self._submitted = {name: os.environ.pop(name) for name in SUBMITTED_VARIABLES if name in os.environ}
        self._spark: SparkSession | None = None

    @property
    def live(self) -> SparkSession | None:
        """The session, or None if it has not started or was stopped."""
        return self._spark

    def start(self) -> SparkSession:
        """Return the session; start it if it does not run.

        Raises:
            PlatformError: Java or the jars are missing.
        """
        if self._spark is None:
            with _sigint_handler_preserved():
                self._spark = self._join() if self._submitted else self._launch()
            # It repeats each AnalysisException, which the cell shows anyway, with the JVM's whole stack.
            PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
            self._on_start(self._spark)
        return self._spark

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stop the session and its JVM, if they run; kill a JVM that takes longer than `seconds`."""
        if self._spark is None:
            return
        gateway: Any = SparkContext._gateway
        try:
            self._spark.stop()
        finally:
            self._spark = None
            # A JVM that ran before the session belongs to the process that started it.
            if gateway is not None and not self._submitted:
                gateway.shutdown()
                _end_jvm(gateway.proc, seconds)

    def _launch(self) -> SparkSession:
        prepare_environment(self._home_folder)
        return local_session(self._app_name, self._jars_folder, self._conf())

    def _join(self) -> SparkSession:
        os.environ.update(self._submitted)
        try:
            SparkContext._ensure_initialized()
        finally:
            for name in self._submitted:
                del os.environ[name]
        conf = SparkConf()
        extra_settings = (
            dbfs.spark_settings(self._home_folder) | {"spark.app.name": self._app_name} | self._extra_conf
        )
        for key, value in (spark_conf() | extra_settings).items():
            conf.setIfMissing(key, value)
        return SparkSession.builder.config(conf=conf).getOrCreate()

    def _conf(self) -> dict[str, str]:
        master = os.environ.get(MASTER_VARIABLE)
        return {
            **({"spark.master": master, **CLUSTER_SHARE} if master else {}),
            "spark.ui.enabled": "true" if os.environ.get("WORKBENCH_SPARK_UI") else "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": (self._home_folder / "spark" / "warehouse").absolute().as_uri(),
            "spark.local.dir": str(self._home_folder / "spark" / "tmp"),
            **dbfs.spark_settings(self._home_folder),
            **(INTERPRETED | ONE_TASK if os.environ.get(FEW_ROWS_VARIABLE) else {}),
            **(_hive(self._home_folder) if os.environ.get(CATALOG_VARIABLE) == "hive" else {}),
        } | self._extra_conf


def _hive(home_folder: Path) -> dict[str, str]:
    """Return the settings of a catalog that remembers tables; Spark's own forgets them with the process.

    Derby stores it, for one process at a time.
    """
    database = home_folder.absolute() / "spark" / "metastore"
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={database};create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }


def prepare_environment(home_folder: Path) -> None:
    """Make Spark use this Python, the project's Spark, and a separate log (`workbench logs spark`)."""
    for name in FOREIGN_VARIABLES:
        os.environ.pop(name, None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if properties := os.environ.get(PROPERTIES_VARIABLE):
        os.environ[SUBMIT_ARGUMENTS] = submit_arguments(properties)
    # Nothing else keeps the JVM's start-up warnings out of the notebook.
    settings, logs = home_folder / "spark" / "log4j2.properties", home_folder / "logs"
    settings.parent.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["WORKBENCH_SPARK_LOG"] = str(logs / "spark.log")
    settings.write_text(LOG_SETTINGS, encoding="utf-8")
    # Not by SPARK_CONF_DIR: a folder on the class path would make the JVM refuse the archive of classes.
    log = f"-Dlog4j2.configurationFile={settings.absolute().as_uri()}"
    store = shlex.split(os.environ.get(JAVA_OPTIONS_VARIABLE, ""))
    derby = f"-Dderby.stream.error.file={(logs / 'derby.log').absolute()}"
    os.environ["SPARK_SUBMIT_OPTS"] = shlex.join([log, derby, *LATE_COMPILED, *store, *more_options()])


@contextmanager
def _sigint_handler_preserved() -> Iterator[None]:
    """Keep PySpark from taking Ctrl-C.

    Its handler would cancel the jobs of streams, too. It would send the request on the connection that waits
    for an answer: an endless wait, or a RuntimeError.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def needs_spark(tree: ast.AST) -> bool:
    """Return whether code reads `spark`, so that notebooks without Spark start no JVM."""
    return any(
        isinstance(node, ast.Name) and node.id in SPARK_NAMES and isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


def _end_jvm(process: subprocess.Popen[bytes] | None, seconds: float) -> None:
    """End the JVM: close its standard input, and kill it if it does not exit."""
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
