"""The wheel in an empty virtual environment, outside of any clone: what a new user types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from zipfile import ZipFile

import pytest

from tests.support.environment import without_workbench
from tests.support.orders_topic import page_commands, send_by_confluent_kafka
from workbench.commands.doctor import locked_packages
from workbench.host.home import Home
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


def installed(wheel: Path, extras: str, user: Path) -> Path:
    """Return the programs of a new virtual environment with the wheel, in the versions of the lock."""
    environment = user / "venv"
    ran([sys.executable, "-m", "venv", str(environment)], user)
    constraints = user / "constraints.txt"
    locked = locked_packages(PROJECT / "requirements.txt")
    constraints.write_text("".join(f"{package.name}{package.specifier}\n" for package in locked))
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "--cache-dir", cache()]
    ran([*pip, "-c", str(constraints), f"{wheel}{extras}"], user)
    return environment / "bin"


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
    assert [name for name in names if "secrets.yaml" in name or "conf/secrets" in name] == []
    assert len([name for name in names if name.endswith(".jar")]) == 3


def test_doctor_demo_and_the_commands_for_a_topic_run_outside_of_a_clone(
    wheel: Path,
    embedded: tuple[Home, Addresses],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    programs = installed(wheel, "[workbench]", tmp_path)
    topiclake = str(programs / "topiclake")
    assert ran([topiclake, "--help"], tmp_path).startswith("Usage: topiclake ")
    said = ran([topiclake, "doctor"], tmp_path, code=1)
    assert re.findall(r"^✗ .*", said, re.M) == [
        "✗ jars             not fetched yet; try: python -m workbench jars"
    ]

    shown = ran([topiclake, "demo"], tmp_path)
    assert "all 993 records of this run arrived" in shown
    page = Path(re.search(r"executed notebook: (\S+\.html)", shown)[1])
    assert page.is_relative_to(
        tmp_path / ".local" / "share" / "topiclake" / "project" / ".workbench" / "runs"
    )

    assert "✗" not in ran([topiclake, "doctor"], tmp_path)

    # The commands of docs/your-topic.md, with a broker and a registry of somebody else.
    addresses = embedded[1].environment()
    services = {name: addresses[name] for name in ("WORKBENCH_KAFKA", "WORKBENCH_SCHEMA_REGISTRY")}
    for name, value in addresses.items():
        monkeypatch.setenv(name, value)
    send_by_confluent_kafka("shop.wheel")
    began = perf_counter()
    outputs = [
        ran([topiclake, *command.split()[1:]], tmp_path, 2 * (" plan " in command), **services)
        for command in page_commands("shop.wheel", "your-topic.md")
    ]
    record_property("your_topic_seconds", f"{perf_counter() - began:.1f}")
    assert "each of the 25 records that Kafka holds is in exactly one place" in outputs[2]
    assert "5 rows; the table has 20 records" in outputs[-1]
    assert (tmp_path / "lake" / "orders" / "_delta_log").is_dir()


def test_without_extras_there_is_neither_spark_nor_jupyter(wheel: Path, tmp_path: Path) -> None:
    programs = installed(wheel, "", tmp_path)
    listed = ran([str(programs / "python"), "-m", "pip", "list", "--format=freeze"], tmp_path).lower()
    assert not re.search(r"^(py4j|pyspark|delta-spark|jupyter\w*|ipykernel|sqlalchemy)==", listed, re.M)
    assert ran([str(programs / "topiclake")], tmp_path, code=1).endswith(
        "try: pip install 'topiclake[workbench]'\n"
    )
