"""The jars that are fetched are those that the project was tested with."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "jars" / "sums.py"


@pytest.fixture
def sums():
    spec = importlib.util.spec_from_file_location("sums", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def jars(tmp_path):
    """A folder with two jars, one of which is made here, and their sums."""
    for name in ("kafka/target/jars/a.jar", "store/target/jars/topiclake-store-1.jar"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"content")
    (tmp_path / "sums.py").write_text(SCRIPT.read_text())
    ran(tmp_path, "--write")
    return tmp_path


def ran(folder, *arguments):
    return subprocess.run(
        [sys.executable, str(folder / "sums.py"), *arguments], capture_output=True, text=True, check=False
    )


def test_the_jars_that_are_here_are_those_of_the_list(sums):
    assert sums.problems(SCRIPT.parent) == []
    assert len(sums.listed(SCRIPT.parent)) > 400


def test_another_jar_a_missing_one_and_an_unknown_one_are_named(jars):
    assert (jars / "sha256sums").read_text().split()[1] == "kafka/target/jars/a.jar"
    assert (ran(jars).returncode, ran(jars).stderr) == (0, "")

    (jars / "kafka/target/jars/a.jar").write_bytes(b"other content")
    done = ran(jars)
    assert done.returncode == 1
    assert "kafka/target/jars/a.jar has the SHA-256 sum" in done.stderr

    (jars / "kafka/target/jars/a.jar").rename(jars / "kafka/target/jars/b.jar")
    errors = ran(jars).stderr.splitlines()
    assert errors[:2] == [
        "kafka/target/jars/a.jar is missing",
        "kafka/target/jars/b.jar is not in jars/sha256sums",
    ]
    assert "try: make clean jars" in errors[2]
