"""The wheel in an empty virtual environment, outside of any clone: what a new user types."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any
from zipfile import ZipFile

import pytest

from tests.support.environment import without_workbench
from tests.support.orders_topic import page_commands, send_by_confluent_kafka, send_by_kafkajs
from topiclake.session import CLASS_ARCHIVE
from workbench.commands.doctor import locked_packages
from workbench.host.home import Home
from workbench.kernel.session import SUBMITTED_VARIABLES
from workbench.services.service import Addresses

PROJECT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.thorough("installs Spark and JupyterLab, and fetches the jars: 800 MB"),
    pytest.mark.slow("pip, Ivy and the demo"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["-q", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder)]
    ran([sys.executable, "-m", "pip", "wheel", *options, str(PROJECT)], folder)
    (built,) = folder.glob("topiclake-*.whl")
    return built


def ran(command: list[str], user: Path, code: int = 0, **more: str) -> str:
    """Run a command as a user whose home folder is empty, with `more` variables; return its output."""
    variables = without_workbench() | {"HOME": str(user), "PYTHONPATH": ""} | more
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "VIRTUAL_ENV"):
        variables.pop(name, None)
    done = subprocess.run(
        command, cwd=user, env=variables, capture_output=True, text=True, check=False, timeout=1500
    )
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of a new virtual environment with the wheel, to which `user` adds the extras."""
    folder = tmp_path_factory.mktemp("user")
    ran([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    install(str(wheel), folder)
    return folder / "venv" / "bin"


def install(requirement: str, user: Path) -> None:
    """Install a requirement in the user's virtual environment, in the versions of the lock."""
    constraints = user / "constraints.txt"
    locked = locked_packages(PROJECT / "requirements.txt")
    constraints.write_text("".join(f"{package.name}{package.specifier}\n" for package in locked))
    pip = [str(user / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", "--cache-dir", cache()]
    ran([*pip, "-c", str(constraints), requirement], user)


def cache() -> str:
    return os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")


def test_the_wheel_has_the_projects_files_and_no_secret(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    assert {
        f"workbench/project/{name}"
        for name in (
            "conf/base.yaml",
            "conf/pipelines/gps.yaml",
            "conf/jobs/gps_pipeline.job.yml",
            "databricks.yml",
            "notebooks/gps_ingest.py",
            "data/gps_tracks.csv",
            "jars/pom.xml",
            "jars/spark/pom.xml",
            "jars/sha256sums",
            "jars/store/target/jars/topiclake-store-1.jar",
            "jars/values/target/jars/topiclake-values-1.jar",
            "jars/console/target/jars/topiclake-console-1.jar",
        )
    } <= names
    # What `new` and `lab` copy.
    templates = {
        f"workbench/templates/{file.name}" for file in (PROJECT / "src/workbench/templates").iterdir()
    }
    assert templates <= names
    extensions = PROJECT / "src" / "workbench" / "lab" / "extensions"
    assert {
        f"workbench/lab/extensions/{file.relative_to(extensions)}"
        for file in extensions.rglob("*")
        if file.is_file()
    } <= names
    assert [name for name in names if "secrets.yaml" in name or "conf/secrets" in name] == []
    assert len([name for name in names if name.endswith(".jar")]) == 3


def test_without_extras_there_is_neither_spark_nor_jupyter(bare: Path, tmp_path: Path) -> None:
    listed = ran([str(bare / "python"), "-m", "pip", "list", "--format=freeze"], tmp_path).lower()
    assert not re.search(r"^(py4j|pyspark|delta-spark|jupyter\w*|ipykernel|sqlalchemy)==", listed, re.M)
    assert ran([str(bare / "topiclake")], tmp_path, code=1).endswith(
        "try: pip install 'topiclake[workbench]'\n"
    )


#: The longest time of the demo and the commands of the page on an idle machine, in seconds. A command uses
#: both cores. With other workers of pytest beside it, the test has no limit but its timeout.
MOST_SECONDS = 120


@dataclass
class User:
    """A user of the wheel, with a home folder and a working folder that were empty, and the jars.

    Attributes:
        folder: The home folder, and the working folder.
        programs: Those of the virtual environment.
        timed: The seconds of each timed command.
    """

    folder: Path
    programs: Path
    timed: list[float] = field(default_factory=list)

    def run(self, command: str, code: int = 0, **more: str) -> str:
        """Run a command that begins with the name of a program, such as `topiclake`; return its output."""
        program, *words = shlex.split(command)
        return ran([str(self.programs / program), *words], self.folder, code, **more)

    def timed_run(self, command: str, code: int = 0) -> str:
        """Run a command as `run` does, and measure it."""
        began = perf_counter()
        output = self.run(command, code)
        self.timed.append(perf_counter() - began)
        return output


@pytest.fixture(scope="module")
def user(wheel: Path, bare: Path) -> Iterator[User]:
    folder = bare.parents[1]
    install(f"{wheel}[workbench]", folder)
    user = User(folder, bare)
    said = user.run("topiclake doctor", code=1)
    assert re.findall(r"^✗ .*", said, re.M) == [
        "✗ jars             not fetched yet; try: python -m workbench jars"
    ]
    # As in a program of spark-submit, whose JVM is not the one that archives its classes.
    submitted = dict.fromkeys(SUBMITTED_VARIABLES, "1")
    folder = Path(user.run("topiclake jars", **submitted).splitlines()[0])
    assert sorted(path.name for path in (folder / "target").glob("*.jsa")) == [
        "kafka.jsa",
        "schema-registry.jsa",
        CLASS_ARCHIVE.name,
    ]
    yield user
    user.run("topiclake down")


@pytest.fixture(scope="module")
def demo(user: User) -> str:
    """Return the output of the demo, whose seconds count."""
    return user.timed_run("topiclake demo")


def test_the_demo_and_doctor_run_outside_of_a_clone(user: User, demo: str) -> None:
    assert user.run("topiclake --help").startswith("Usage: topiclake ")
    assert "all 993 records of this run arrived" in demo
    page = Path(re.search(r"executed notebook: (\S+\.html)", demo)[1])
    assert page.is_relative_to(
        user.folder / ".local" / "share" / "topiclake" / "project" / ".workbench" / "runs"
    )
    assert "✗" not in user.run("topiclake doctor")


#: The article's schema to the letter (notebooks/tutorials/01_gps.py), and a version with one more field.
ARTICLE_GPS: dict[str, Any] = {
    "type": "record",
    "name": "Gps",
    "namespace": "com.michelin.telematic",
    "fields": [
        {"name": "timestamp", "type": "long"},
        {"name": "deviceId", "type": "long"},
        {"name": "latitude", "type": "double"},
        {"name": "longitude", "type": "double"},
        {"name": "altitude", "type": "double"},
        {"name": "speed", "type": "double"},
    ],
}
HEADED_GPS = ARTICLE_GPS | {
    "fields": [*ARTICLE_GPS["fields"], {"name": "heading", "type": ["null", "double"], "default": None}]
}


def gps_by_kafkajs(topic: str, addresses: Addresses) -> None:
    """Send 20 positions of two versions, and five records that are none, by KafkaJS."""
    position = {
        "timestamp": 1_700_000_000_000,
        "latitude": 45.8,
        "longitude": 3.1,
        "altitude": 390.5,
        "speed": 50.1,
    }
    records = [(n % 2, position | {"deviceId": n, "heading": 90.5}) for n in range(20)]
    send_by_kafkajs(topic, addresses, [ARTICLE_GPS, HEADED_GPS], records)


@pytest.mark.usefixtures("demo")
def test_the_commands_for_a_topic_run_outside_of_a_clone(
    user: User,
    embedded: tuple[Home, Addresses],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """The commands of docs/your-topic.md, with the broker and the registry of somebody else.

    Demo and commands need at most two minutes of an idle machine. To check that, run it with `-n 0`.
    """
    pipeline, topic = "trips", "wheel.trips"
    with monkeypatch.context() as sending:
        for name, value in embedded[1].environment().items():
            sending.setenv(name, value)
        gps_by_kafkajs(topic, embedded[1])
    bootstrap, registry = embedded[1].kafka_bootstrap_servers, embedded[1].schema_registry_url
    commands = [re.sub(r"\borders\b", pipeline, line) for line in page_commands("TOPIC", "your-topic.md")]
    commands = [command.replace("TOPIC", topic) for command in commands]
    commands[0] += f" --bootstrap {bootstrap} --registry {registry}"
    outputs = [user.timed_run(command, 2 * (" plan " in command)) for command in commands]
    record_property("block_seconds", f"{sum(user.timed):.1f}")
    assert f"{topic}: 25 records in 3 partitions" in outputs[0]
    assert "ok: 20" in outputs[1]
    assert "each of the 25 records that Kafka holds is in exactly one place" in outputs[2]
    assert "each of the 25 records that Kafka holds is in exactly one place" in outputs[3]
    assert "unknown_schema_id" in outputs[4]
    assert "5 rows; the table has 20 records" in outputs[5]
    assert (user.folder / "lake" / pipeline / "_delta_log").is_dir()
    has_others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
    assert has_others or sum(user.timed) <= MOST_SECONDS, user.timed


@pytest.mark.usefixtures("demo")
def test_one_command_carries_a_topic_into_a_table(
    user: User, embedded: tuple[Home, Addresses], monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = embedded[1].environment()
    services = {name: addresses[name] for name in ("WORKBENCH_KAFKA", "WORKBENCH_SCHEMA_REGISTRY")}
    for name, value in addresses.items():
        monkeypatch.setenv(name, value)
    send_by_confluent_kafka("wheel.short")
    output = user.run("topiclake ingest --topic wheel.short --into ./short", **services)
    assert "each of the 25 records that Kafka holds is in exactly one place" in output
    assert (user.folder / "short" / "wheel.short" / "_delta_log").is_dir()


@pytest.mark.usefixtures("demo")
def test_a_package_of_new_runs_and_passes_its_test(user: User) -> None:
    """The package reads the demo's topic into a table of its own."""
    user.run("topiclake up")
    written = user.run("topiclake new my_gps --pipeline gps")
    command = re.search(r"^next +(topiclake run .*)$", written, re.M)[1]
    lake = (user.folder / "new").as_uri()
    paths = f"-p table_path={lake}/gps -p checkpoint_path={lake}/_checkpoints/gps"
    assert '"rows_written": 993' in user.run(f"{command} {paths}")
    project = user.folder / ".local" / "share" / "topiclake" / "project"
    user.run(f"pip install -q --cache-dir {cache()} pytest")
    assert "1 passed" in user.run(f"python -m pytest -q -c {project / 'pyproject.toml'} {project / 'tests'}")
