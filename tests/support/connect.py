"""A Spark Connect server in the JVM of a session, and Python programs that are its clients."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from tests.support.environment import succeeded, without_workbench

PROJECT = Path(__file__).parents[2]
#: What a client does first: values come on its standard input, as Python pickles them.
_PROLOGUE = """
import logging, os, pickle, sys
from pyspark.sql import SparkSession
import topiclake as tl
logging.basicConfig(format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
globals().update(pickle.load(sys.stdin.buffer))
spark = SparkSession.builder.remote(connect_url).getOrCreate()
"""


class ConnectServer:
    """The server that pyspark brings; a client has neither a JVM nor the variables of the services."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        conf = jvm.org.apache.spark.SparkEnv.get().conf()
        conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
        conf.set("spark.connect.grpc.binding.port", "0")
        service = getattr(
            getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$"
        )
        service.start(spark._jsc.sc())
        self.url = f"sc://127.0.0.1:{service.localPort()}"

    def run(
        self, code: str, variables: Mapping[str, str] = MappingProxyType({}), **values: object
    ) -> subprocess.CompletedProcess[str]:
        """Run code in another process, with a session `spark` of this server, `tl` and `values`."""
        done = subprocess.run(
            [sys.executable, "-c", _PROLOGUE + code],
            input=pickle.dumps(values | {"connect_url": self.url}),
            cwd=PROJECT,
            env=without_workbench() | dict(variables),
            capture_output=True,
            timeout=240,
            check=False,
        )
        texts = done.stdout.decode(), done.stderr.decode()
        done_text = subprocess.CompletedProcess(done.args, done.returncode, *texts)
        succeeded(done_text)
        return done_text
