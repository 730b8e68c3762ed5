"""A JVM that runs of notebooks use, one after the other: a cold one costs each half a minute of CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from tests.support.environment import quiet_conf
from topiclake.session import local_conf
from workbench.kernel.session import SUBMITTED_VARIABLES, prepare_environment

#: In a time zone other than UTC, Delta would compute the state of a table once more after each commit.
_UNVERIFIED = {"spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false"}


class WarmJvm:
    """A JVM as spark-submit starts one; each run has a Spark context of its own in it.

    Not for runs side by side, nor for those that are killed: the JVM would go on.

    Args:
        folder: Where Spark keeps its files.
        project: The project, for its jars.
        variables: Of the environment, on top of this process's. Each run has their `PYTHONPATH`.
        more: Settings of Spark, such as its master.
    """

    def __init__(
        self,
        folder: Path,
        project: Path,
        variables: Mapping[str, str],
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._python_path = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        conf = local_conf(project / "jars") | quiet_conf(folder) | _UNVERIFIED | dict(more)
        with pytest.MonkeyPatch.context() as environment:
            # A time zone in which nobody's times would be right by chance.
            for name, value in ({"TZ": "America/New_York"} | dict(variables)).items():
                environment.setenv(name, value)
            # Set here, so that they are gone with the context.
            for name in ("PYSPARK_PYTHON", "SPARK_SUBMIT_OPTS", "WORKBENCH_SPARK_LOG"):
                environment.setenv(name, "")
            prepare_environment(folder)
            launch: Any = launch_gateway  # it has no types
            self._gateway: Any = launch(SparkConf(loadDefaults=False).setAll(list(conf.items())))

    @property
    def is_alive(self) -> bool:
        """Whether the JVM runs."""
        return self._gateway.proc.poll() is None

    def environment(self) -> dict[str, str]:
        """Return the variables by which the next run finds the JVM; what the last one left is stopped."""
        contexts = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        left = contexts.getActive()
        if left.isDefined():
            left.get().stop()
        forget_tables(self._gateway.jvm)
        found = (str(self._gateway.java_parameters.port), self._gateway.java_parameters.auth_token)
        modules = [str(Path(__file__).with_name("shared_jvm")), self._python_path]
        return dict(zip(SUBMITTED_VARIABLES, found, strict=True)) | {
            # Spark's Python workers need the packages of this Python.
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, modules)),
        }

    def stop(self) -> None:
        """End the JVM."""
        process: subprocess.Popen[bytes] = self._gateway.proc
        self._gateway.shutdown()
        assert process.stdin
        process.stdin.close()
        process.wait(120)


def forget_tables(jvm: Any) -> None:
    """Have Delta forget the tables that it knows, each of which keeps the plans of its log in memory."""
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
