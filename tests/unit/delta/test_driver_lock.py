import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from topiclake.delta import driver_lock, log_store
from topiclake.errors import PlatformError

FIRST = """\
import sys, time
from types import SimpleNamespace
from topiclake.delta import log_store
spark = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: sys.argv[2]))
log_store.require_log_store(spark, sys.argv[1])
print("taken", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _nothing_is_held(monkeypatch):
    held = {}
    monkeypatch.setattr(driver_lock, "_locks", held)
    yield
    for file in held.values():
        file.close()


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    started = []

    def first(table, store):
        command = [sys.executable, "-c", FIRST, table, store]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout.readline() == "taken\n"
        return process

    yield first
    for process in started:
        process.kill()
        process.communicate()


def session(store):
    return SimpleNamespace(conf=SimpleNamespace(get=lambda *_: store))


@pytest.mark.parametrize(
    ("table", "again", "store", "safe"),
    [
        (
            "s3a://lake/gps",
            "s3a://lake/gps",
            "io.delta.storage.S3SingleDriverLogStore",
            "ConditionalPutLogStore",
        ),
        ("file:/lake/gps", "/lake/./gps", "io.delta.storage.HDFSLogStore", "LinkedLogStore"),
    ],
)
def test_a_second_driver_is_refused_where_one_is_allowed_and_told_of_the_first(
    start, table, again, store, safe, tmp_path
):
    first = start(table, store)
    with pytest.raises(PlatformError) as refused:
        log_store.require_log_store(session(store), again)
    assert f"{again} is written by process {first.pid} (since 2" in str(refused.value)
    assert f"{store} is safe for one driver only" in str(refused.value)
    key = f"spark.delta.logStore.{table.partition(':')[0]}.impl"
    assert refused.value.remedy == f"end that one, or set {key} to io.topiclake.store.{safe} in both"
    (lock,) = tmp_path.glob("topiclake-*.lock")
    assert oct(lock.stat().st_mode & 0o777) == "0o644"
    # Another table is nobody's, and a log store for many drivers asks nobody.
    log_store.require_log_store(session(store), f"{again}-other")
    log_store.require_log_store(session(f"io.topiclake.store.{safe}"), again)

    first.send_signal(signal.SIGKILL)
    first.wait(60)
    for _ in range(2):
        log_store.require_log_store(session(store), again)
