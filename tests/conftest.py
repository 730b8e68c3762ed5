"""What all tests share: the project's folder, one plain broker and registry, one Spark session."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from tests.support import selection
from tests.support.connect import ConnectServer
from tests.support.environment import quiet_conf
from tests.support.running import Running
from tests.support.warm_jvm import WarmJvm, forget_tables
from topiclake.session import local_session
from topiclake.storage import mount
from workbench.host import processes
from workbench.host.home import Home
from workbench.host.java import SHORT_LIVED
from workbench.kernel.session import INTERPRETED, ONE_TASK, SUBMITTED_VARIABLES
from workbench.services import control as services
from workbench.services.service import Addresses

if TYPE_CHECKING:
    from playwright.sync_api import Page

PROJECT = Path(__file__).parents[1]
CHROMIUM = "/usr/bin/chromium"

# Tests run much code a few times, so the second compiler would cost more time than it saves, also in the
# session's own JVM (measured on four files with two workers: 382 s of CPU; 422 s with both compilers).
# With the first compiler alone Java keeps 48 MB for compiled code, which sixteen notebooks in one JVM fill.
os.environ.setdefault("JDK_JAVA_OPTIONS", f"{SHORT_LIVED} -XX:ReservedCodeCacheSize=240m")

# The JVM and the services that several runs of pytest share (tests/mutation/plant_faults.py), if any.
# Processes that a test starts must not find them.
SHARED_JVM = {name: os.environ.pop(name) for name in SUBMITTED_VARIABLES if name in os.environ}
SHARED_HOME = os.environ.pop("TOPICLAKE_TEST_HOME", None)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins of these tests; only the process that prints hears of all tests."""
    config.pluginmanager.register(selection)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Running(lambda line: terminal.write_line(line)))


@pytest.fixture(autouse=True)
def _no_mounts_of_another_test() -> Iterator[None]:
    yield
    mount._dbutils = None


@pytest.fixture(scope="module", autouse=True)
def _no_tables_of_other_modules() -> Iterator[None]:
    """Delta remembers each table for an hour, with the plans of its log: 600 MB after 40 minutes of tests."""
    yield
    if session := SparkSession.getActiveSession():
        forget_tables(session._jvm)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Addresses]]:
    """A home whose broker and registry run, without TLS and logins; tests take topics of their own."""
    home = Home(Path(SHARED_HOME) if SHARED_HOME else tmp_path_factory.mktemp("embedded"), PROJECT)
    addresses = services.up(home)
    yield home, addresses
    if not SHARED_HOME:
        services.down(home)
        assert processes.marked(home) == []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """The session, with the settings that the library asks for; its files are in a temporary folder."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with pytest.MonkeyPatch.context() as of_jvm:
        for name, value in SHARED_JVM.items():
            of_jvm.setenv(name, value)
        session = local_session("tests", PROJECT / "jars", quiet_conf(folder) | ONE_TASK)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def generated_code(spark: SparkSession) -> Iterator[None]:
    """A session that compiles its expressions, as users have it."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


@pytest.fixture
def catalog_schema(spark: SparkSession) -> Iterator[str]:
    """A schema of the catalog, dropped with its tables."""
    name = f"named_{uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA {name}")
    yield name
    for query in spark.streams.active:
        query.stop()
    spark.sql(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture(scope="session")
def warm_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """A JVM for runs of notebooks with few rows, see there."""
    # With one partition, Spark has an aggregate and a limit of a stream in one task, where they fail.
    conf = ONE_TASK | {"spark.sql.shuffle.partitions": "2"}
    jvm = WarmJvm(tmp_path_factory.mktemp("jvm"), PROJECT, {}, conf)
    yield jvm
    jvm.stop()


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of Debian's Chromium."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=90_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1280, "height": 1000})
        browser.close()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What `display` gave to Jupyter."""
    published: list[object] = []
    monkeypatch.setattr("workbench.display.show._publish", lambda what, **_: published.append(what))
    return published


@pytest.fixture
def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def stub() -> ModuleType:
    """What Databricks' SDK knows of dbutils; by its file, since its package asks for a login at once."""
    package = importlib.util.find_spec("databricks.sdk")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "runtime" / "dbutils_stub.py"
    spec = importlib.util.spec_from_file_location("dbutils_stub", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def connect_server(spark: SparkSession) -> ConnectServer:
    """A Spark Connect server in the JVM of the session, until that JVM ends."""
    return ConnectServer(spark)
