"""The notebooks on a cluster of Spark's: a master, two workers, and executors that are killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset
import pytest
import yaml
from confluent_kafka import Producer

import topiclake as tl
from tests.support.environment import without_workbench
from tests.support.waiting import wait_until
from tests.support.warm_jvm import WarmJvm
from topiclake.schema_registry.wire_format import frame
from topiclake_examples.gps import publish_tracks
from topiclake_examples.gps.tracks import Published
from workbench.host import processes
from workbench.host.home import Home
from workbench.host.installation import spark_home
from workbench.kernel.session import CLUSTER_SHARE
from workbench.services import control as services
from workbench.services.s3_gateway import BUCKET, S3Gateway
from workbench.services.service import Addresses
from workbench.services.spark_cluster import PROPERTIES_VARIABLE, SparkMaster, cluster

pytestmark = [
    pytest.mark.thorough("needs a Spark cluster: a master and two workers"),
    pytest.mark.slow("executors start, are killed and start again"),
]

PROJECT = Path(__file__).parents[3]
MANIFEST = yaml.safe_load((PROJECT / "deploy" / "kubernetes" / "taxi-archive.yaml").read_text("utf-8"))
BATCH_ROWS = {"gps": 20_000, "taxi": 4_000}
#: In the project's own file: three batches.
TRIPS = 10_000
#: Of 331 points each on average: three batches.
DEVICES = 180
PATIENCE_SECONDS = 240


class Run(subprocess.Popen[str]):
    """A process that tells a file: a pipe that nobody reads while a test looks elsewhere would stop it."""

    def __init__(self, command: list[str], **given: Any) -> None:
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed with the process)
        super().__init__(command, stdout=self.file, stderr=subprocess.STDOUT, text=True, **given)

    def output(self, timeout: float | None = None) -> str:
        """Wait for its end, and return its output."""
        self.wait(timeout)
        self.file.seek(0)
        return self.file.read()


@dataclass(frozen=True)
class Cluster:
    """A running cluster, and a project whose notebooks are the real files."""

    home: Home
    project: Path
    environment: dict[str, str]
    datalake: Path
    #: On S3: where executors keep what they have not put yet.
    blocks: Path | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    started: list[Run] = field(default_factory=list)

    def of_topic(self, topic: str, table: str = "") -> Cluster:
        """The same cluster, for another topic and a table of it."""
        names = ("table", "checkpoint")
        paths = {f"{name}_path": f"/mnt/datalake/{name}/{topic}{table}" for name in names}
        return replace(self, parameters=self.parameters | {"topic": topic, **paths})

    def on_s3(self, gateway: S3Gateway, blocks: Path) -> Cluster:
        """The same cluster, for tables on S3; what opens it, the notebooks are given, and no worker."""
        return replace(
            self,
            blocks=blocks,
            environment=self.environment | dict(gateway.exports(self.home.load().ports)),
            datalake=gateway.folder / "buckets" / BUCKET / "topiclake",
            parameters=self.parameters | {"env": "local-s3"},
        )

    def workers(self) -> list[psutil.Process]:
        running = processes.running(self.home)
        return [running[worker.name] for worker in cluster(self.home)[1:] if worker.name in running]

    def executors(self) -> list[psutil.Process]:
        return [process for worker in self.workers() for process in worker.children()]

    def start(self, notebook: str, **parameters: str) -> Run:
        command = [sys.executable, "-m", "workbench", "run", *self.arguments(notebook, parameters)]
        return self.popen(command, self.exports())

    def start_in(self, jvm: WarmJvm, notebook: str, **parameters: str) -> Run:
        """The same in a JVM that is there."""
        command = [sys.executable, "-m", "workbench", "run", *self.arguments(notebook, parameters)]
        return self.popen(command, jvm.environment())

    def submit(self, notebook: str, properties: Path | None = None, **conf: str) -> Run:
        """Run it by spark-submit with the settings of a manifest, and those of `conf` over them."""
        settings = MANIFEST["spec"]["sparkConf"] | {
            "spark.driver.extraJavaOptions": MANIFEST["spec"]["driver"]["javaOptions"],
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            **({"spark.hadoop.fs.s3a.buffer.dir": str(self.blocks)} if self.blocks else {}),
            **CLUSTER_SHARE,
        }
        settings |= {f"spark.{key.replace('_', '.')}": text for key, text in conf.items()}
        here = {key: text.replace("/topiclake/", f"{PROJECT}/") for key, text in settings.items()}
        given = [part for key, text in here.items() for part in ("--conf", f"{key}={text}")]
        file = PROJECT / "deploy" / "kubernetes" / "run_notebook.py"
        submit = [str(spark_home() / "bin" / "spark-submit"), "--master", self.master()]
        secret = properties or self.exports()[PROPERTIES_VARIABLE]
        program = [*submit, "--properties-file", str(secret), *given, str(file)]
        return self.popen([*program, *self.arguments(notebook, {})], {"PYSPARK_PYTHON": sys.executable})

    def arguments(self, notebook: str, parameters: Mapping[str, str]) -> list[str]:
        given = self.parameters | parameters
        if notebook.endswith("_publish"):
            given = {name: value for name, value in given.items() if not name.endswith("_path")}
        options = [part for name, value in given.items() for part in ("-p", f"{name}={value}")]
        return [str(self.project / "notebooks" / f"{notebook}.py"), *options]

    def publish_tracks(self, devices: int) -> Published:
        file = self.project / "data" / "gps_tracks.csv"
        with pytest.MonkeyPatch.context() as variables:
            for name, value in self.environment.items():
                variables.setenv(name, value)
            settings = tl.load_settings("gps", {"topic": self.parameters["topic"]})
            return publish_tracks(settings, file, devices=devices)

    def popen(self, command: list[str], variables: dict[str, str]) -> Run:
        environment = self.environment | variables
        process = Run(command, cwd=self.project, env=environment)
        self.started.append(process)
        return process

    def exports(self) -> dict[str, str]:
        """The variables by which a notebook finds the cluster."""
        return dict(SparkMaster(self.home).exports(self.home.load().ports))

    def master(self) -> str:
        return SparkMaster(self.home).address(self.home.load().ports)

    def folder(self, name: str) -> Path:
        return self.datalake / self.parameters[f"{name}_path"].removeprefix("/mnt/datalake/")

    def committed_batches(self) -> int:
        """How many batches Spark's checkpoint calls done."""
        return len(list((self.folder("checkpoint") / "commits").glob("[0-9]*")))

    def begun_batches(self) -> int:
        return len(list((self.folder("checkpoint") / "offsets").glob("[0-9]*")))

    def work_folders(self) -> list[Path]:
        """Where the workers keep what their executors had and said."""
        return [self.home.data / service.name for service in cluster(self.home)[1:]]

    def file_being_written(self, executor: psutil.Process) -> str:
        """The file of a table's data that an executor writes: it is in the middle of a task of a batch.

        On S3 that is a local one, which goes into the store when the task closes it.
        """
        begin = str(self.blocks / "s3ablock-") if self.blocks else f"{self.folder('table')}/part-"
        try:
            found = (file for file in executor.open_files() if file.mode != "r")
            return next((file.path for file in found if file.path.startswith(begin)), "")
        except psutil.Error:
            return ""

    def stop_one_in_mid_task(self, running: Run) -> tuple[psutil.Process, str]:
        """Stop an executor (SIGSTOP) that is writing a data file, and return both."""
        found: list[tuple[psutil.Process, str]] = []

        def stopped_in_mid_task() -> bool:
            assert running.poll() is None, f"it ended by itself: {running.output()[-3000:]}"
            for executor in self.executors():
                # Stopped before it is looked at: on a busy machine it would write a whole file meanwhile.
                with suppress(psutil.NoSuchProcess):
                    executor.suspend()
                    if file := self.file_being_written(executor):
                        found.append((executor, file))
                        return True
                    executor.resume()
            return False

        wait_until(stopped_in_mid_task, PATIENCE_SECONDS)
        return found[0]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's own files, with a configuration that makes small batches."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("jars", "data"):
        (folder / name).symlink_to(PROJECT / name)
    (folder / "notebooks").mkdir()
    for notebook in (PROJECT / "notebooks").glob("*.py"):
        (folder / "notebooks" / notebook.name).symlink_to(notebook)
    shutil.copytree(PROJECT / "conf", folder / "conf")
    for pipeline, rows in BATCH_ROWS.items():
        with (folder / "conf" / "pipelines" / f"{pipeline}.yaml").open("a", encoding="utf-8") as file:
            file.write(f"max_offsets_per_trigger: {rows}\n")
    return folder


@pytest.fixture(scope="module")
def running(embedded: tuple[Home, Addresses], project: Path) -> Iterator[Cluster]:
    home, addresses = embedded
    environment = without_workbench() | addresses.environment()
    found = Cluster(home, project, environment, home.datalake)
    services.start_services(home, cluster(home))
    yield found
    left = found.executors()
    # Those that a failed test left; they end what they have started.
    processes.stop([psutil.Process(one.pid) for one in found.started if one.poll() is None])
    for service in cluster(home):
        processes.stop(processes.marked(home, service.name))
    # What a worker has started ends with it.
    assert processes.still_running(left, 120) == []


def produce(found: Cluster, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": found.environment["WORKBENCH_KAFKA"]})
    producer.produce(found.parameters["topic"], value)
    assert producer.flush(120) == 0


def exit_value(process: Run) -> Any:
    output = process.output(PATIENCE_SECONDS)
    assert process.returncode == 0, output[-4000:]
    return json.loads(re.search(r"^exit value +(.*)$", output, re.MULTILINE)[1])


def data_files(table: Path) -> set[str]:
    """The files of a table's current version, read from its log without Spark."""
    files: set[str] = set()
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text("utf-8").splitlines()):
            files |= {action["add"]["path"]} if "add" in action else set()
            files -= {action["remove"]["path"]} if "remove" in action else set()
    return files


def archived_files(folder: Path) -> set[str]:
    """The files that count among those of an archive, as Spark's file sink lists them."""
    logs = (log.read_text("utf-8").splitlines() for log in (folder / "_spark_metadata").glob("[0-9]*"))
    return {Path(json.loads(entry)["path"]).name for version, *entries in logs for entry in entries}


def offsets(table: Path, files: set[str]) -> list[tuple[int, int]]:
    """Partition and offset of every row in some files of a table."""
    found = pyarrow.dataset.dataset([str(table / file) for file in files], format="parquet")
    rows = found.to_table(columns=["_kafka"])["_kafka"].to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def open_to_others(process: psutil.Process) -> list[str]:
    """The addresses at which a process listens, except those on loopback."""
    listening = [one.laddr.ip for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return [ip for ip in listening if ip.removeprefix("::ffff:") != "127.0.0.1"]


@pytest.fixture
def gateway(running: Cluster, pytestconfig: pytest.Config) -> Iterator[S3Gateway]:
    found = S3Gateway(running.home)
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        found.program(print)  # its progress is seen
    services.start_services(running.home, [found])
    yield found
    processes.stop(processes.marked(running.home, found.name))


@pytest.fixture
def jvm(running: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """A driver's JVM, with one executor in each run."""
    settings = {"spark.master": running.master(), **CLUSTER_SHARE, "spark.cores.max": "1"}
    variables = running.environment | running.exports()
    found = WarmJvm(tmp_path_factory.mktemp("jvm"), PROJECT, variables, settings)
    yield found
    found.stop()


def files_with(text: str, *folders: Path) -> list[Path]:
    """The files, other than jars, that hold a text."""
    there = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return [file for file in there if file.suffix != ".jar" and text.encode() in file.read_bytes()]


def processes_with(text: str) -> list[psutil.Process]:
    """The processes whose command lines, which are for everybody to read, hold a text."""
    return [one for one in psutil.process_iter(["cmdline"]) if text in " ".join(one.info["cmdline"] or [])]


@pytest.mark.timeout(600)
def test_the_taxi_notebooks_archive_each_trip_once_on_s3_though_an_executor_is_killed(
    running: Cluster, gateway: S3Gateway, jvm: WarmJvm, tmp_path: Path
) -> None:
    blocks, events = tmp_path / "blocks", tmp_path / "events"
    events.mkdir()
    found = running.on_s3(gateway, blocks).of_topic("taxi-killed")
    secret = found.environment["TOPICLAKE_SECRET_WORKBENCH_S3_SECRET_KEY"]
    sent = exit_value(found.start_in(jvm, "taxi_publish"))
    assert (sent["records"], sent["partitions"]) == (TRIPS, 10)

    # Beside the other archive, from which nothing is killed.
    delta = found.of_topic("taxi-killed", "-delta")
    into_delta = delta.start_in(jvm, "taxi_archive", pipeline="taxi_delta")
    logged = {"eventLog_enabled": "true", "eventLog_compress": "false", "eventLog_dir": events.as_uri()}
    run = found.submit("taxi_archive", **logged)
    victim, _ = found.stop_one_in_mid_task(run)
    # What opens the store came to it with its task, and not by what others may read.
    assert victim in processes_with("CoarseGrainedExecutorBackend")
    assert processes_with(secret) == []
    assert secret not in victim.environ().values()
    victim.kill()

    done, folder = exit_value(run), found.folder("table")
    assert (done["rows"], found.committed_batches()) == (TRIPS, 3)
    # The kill hit a task: what it was writing is no part of the archive, nor of the store.
    files = archived_files(folder)
    assert files == {file.name for file in folder.glob("part-*")}
    there = offsets(folder, files)
    assert len(there) == len(set(there)) == TRIPS

    done, folder = exit_value(into_delta), delta.folder("table")
    assert (done["table"]["rows"], done["quarantined"]) == (TRIPS, {})
    assert offsets(folder, data_files(folder)) == there

    assert files_with("SparkListenerSQLExecutionStart", events)
    # In what the workers keep, in logs, reports, events and the store itself; only its own file has the key.
    kept = [found.home.folder / name for name in ("logs", "runs", "spark")]
    leaks = files_with(secret, tmp_path, gateway.folder, *kept, *found.work_folders())
    assert leaks == [gateway.folder / "key.json"]


PROBE = """\
# Databricks notebook source
import json
import sys
from pyspark.sql import functions as F
from topiclake.session import require_avro_limits

require_avro_limits(spark)

# COMMAND ----------

python = F.udf(lambda: " ".join(sys.version.split()))()
java = F.expr("java_method('java.lang.System', 'getProperty', 'sun.java.command')")
dbutils.notebook.exit(json.dumps(spark.range(1).select(python, java).first()))
"""


PARENT = """\
# Databricks notebook source
spark.range(2).count()
dbutils.notebook.exit(dbutils.notebook.run("./probe", 0))
"""


def test_notebooks_share_the_cluster_and_their_executors_have_limits_and_this_python(
    running: Cluster, tmp_path: Path
) -> None:
    for name, source in (("probe", PROBE), ("parent", PARENT)):
        (running.project / "notebooks" / f"{name}.py").write_text(source)
    guess = tmp_path / "guess.properties"
    guess.write_text("spark.authenticate true\nspark.authenticate.secret guess\n")
    # Side by side, since the stranger waits for a minute.
    stranger = running.submit("probe", properties=guess)
    refused = running.submit("probe", executor_extraJavaOptions="-XX:+UseG1GC")
    python, java = exit_value(running.start("parent"))
    assert python == " ".join(sys.version.split())
    assert java.startswith("org.apache.spark.executor.CoarseGrainedExecutorBackend ")

    # What is submitted wins over topiclake.session, and a failed notebook is a failed application.
    output = refused.output(PATIENCE_SECONDS)
    assert refused.returncode == 1
    assert "the JVM has no org.apache.avro.limits." in output

    # Another user of this machine cannot read the secret, and gets no executor.
    assert processes_with(Path(running.exports()[PROPERTIES_VARIABLE]).read_text("utf-8").split()[-1]) == []
    assert "All masters are unresponsive" in stranger.output(PATIENCE_SECONDS)
    assert stranger.returncode != 0


@pytest.mark.timeout(600)
def test_killed_executors_and_workers_cost_no_record_and_double_none(running: Cluster) -> None:
    # The last one: a worker is killed.
    found = running.of_topic("killed")
    sent = found.publish_tracks(DEVICES)
    produce(found, frame(sent.schema_id, b"truncated"))
    run = found.start("gps_ingest")

    wait_until(lambda: found.committed_batches() or run.poll() is not None, PATIENCE_SECONDS)
    executors = found.executors()
    assert len(executors) == 2
    assert [open_to_others(one) for one in [*executors, *found.workers()]] == [[]] * 4

    victim, cut = found.stop_one_in_mid_task(run)
    begun = found.begun_batches()
    assert begun > found.committed_batches()
    victim.kill()
    # The worker starts another one, and the batch that was cut goes on.
    wait_until(lambda: set(found.executors()) - set(executors), PATIENCE_SECONDS)
    wait_until(lambda: found.committed_batches() >= begun or run.poll() is not None, PATIENCE_SECONDS)

    victim, cut_too = found.stop_one_in_mid_task(run)
    begun = found.begun_batches()
    assert begun > found.committed_batches()
    victim.parent().kill()
    victim.kill()

    done = exit_value(run)
    assert [one.state for one in services.status(found.home, cluster(found.home))].count("crashed") == 1
    assert found.committed_batches() >= begun
    # The reason of the record that does not decode comes from fastavro, so from Python on an executor.
    assert (done["rows_written"], done["quarantined"]) == (sent.records, {"undecodable": 1})
    assert done["audit"]["findings"] == []
    # Both kills hit tasks: what they were writing belongs to no commit.
    assert not {Path(cut).name, Path(cut_too).name} & data_files(found.folder("table"))
    there = offsets(found.folder("table"), data_files(found.folder("table")))
    assert len(there) == len(set(there)) == sent.records
