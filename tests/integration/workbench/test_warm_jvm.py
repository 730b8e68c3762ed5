"""The JVM that runs of tests share: its calls of Python functions reach the run that uses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import succeeded, without_workbench
from tests.support.warm_jvm import WarmJvm

PROJECT = Path(__file__).parents[3]
SESSION = f"""
import time
from pathlib import Path
from topiclake.session import local_session

spark = local_session("run", Path({str(PROJECT)!r}) / "jars", {{}})
properties = spark._jvm.System.getProperties()
"""
#: A Python object that the JVM holds beyond the end of the run.
HOLD = """
from pyspark.java_gateway import ensure_callback_server_started

class Held:
    class Java:
        implements = ["java.lang.Runnable"]

ensure_callback_server_started(spark.sparkContext._gateway)
held = spark._jvm.java.util.concurrent.atomic.AtomicReference()
held.set(Held())
properties.put("held", held)
"""
#: The JVM drops that object while a query calls a function of another run.
DROP = """
seen = []
rows = spark.readStream.format("rate").load()
query = rows.writeStream.foreachBatch(lambda _, number: seen.append(number)).start()

def await_batches(count):
    while len(seen) < count and query.isActive:
        time.sleep(0.05)

await_batches(1)
properties.get("held").set(None)
spark._jvm.System.gc()
spark._jvm.System.runFinalization()
await_batches(len(seen) + 2)
print(query.exception())
query.stop()
"""


@pytest.mark.thorough("the tests' own JVM, no claim")
def test_an_object_of_an_earlier_run_takes_no_function_of_a_later_one_along(warm_jvm) -> None:
    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SESSION + code],
            env=without_workbench() | warm_jvm.environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return succeeded(done).strip()

    run(HOLD)
    assert run(DROP) == "None"


@pytest.mark.thorough("the tests' own JVM, no claim")
def test_a_run_has_the_modules_that_the_jvm_was_started_with(tmp_path) -> None:
    """`make faults` would run the tests of a planted fault with modules that have none."""
    jvm = WarmJvm(tmp_path, PROJECT, {"PYTHONPATH": "/copy"})
    _, *modules = jvm.environment()["PYTHONPATH"].split(os.pathsep)
    jvm.stop()
    assert modules == ["/copy"]
