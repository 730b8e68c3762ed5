"""The state folder of the workbench."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.support.stand_in import stand_in
from topiclake.errors import ConfigError, StorageError
from workbench.host.home import Home, State, folder_bytes

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home", PROJECT)
    home.prepare()
    return home


def test_a_saved_state_is_loaded_again(home: Home) -> None:
    state = State(ports={"kafka": 1234}, processes=["kafka"], extras=["s3"])
    home.save(state)
    assert home.load() == state


def test_a_write_that_fails_leaves_the_old_state_and_no_temporary_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.save(State(ports={"kafka": 1}))

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workbench.host.files.os", stand_in(os, fsync=full_disk))
    with pytest.raises(OSError, match="No space"):
        home.save(State(ports={"kafka": 2}))
    assert home.load().ports == {"kafka": 1}
    assert not list(home.folder.glob("*.tmp"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"ports": {}}', '{"ports": {}, "processes": {"kafka": {}}}']
)
def test_a_damaged_state_file_is_an_empty_state(home: Home, text: str) -> None:
    home.state_file.write_text(text)
    assert home.load() == State()


def test_every_folder_is_readable_by_its_owner_only(home: Home) -> None:
    for folder in (home.folder, home.logs, home.data, home.datalake, home.runs, home.tmp):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_lock_that_another_process_holds_is_waited_for_and_then_named(home: Home) -> None:
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(1, flush=True); input()"
    command = [sys.executable, "-c", code, str(home.folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StorageError, match="another command"), home.lock(seconds=0.2):
            pass
        other.kill()
    with home.lock(seconds=5):
        pass


def test_a_folder_that_cannot_be_made_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="; try: set WORKBENCH_HOME=") as raised:
        Home(tmp_path / "file" / "home", PROJECT).prepare()
    assert raised.value.fields == {"folder": str(tmp_path / "file" / "home"), "reason": "not_writable"}


def test_a_folder_name_that_kafka_would_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="comma") as raised:
        Home(tmp_path / "a,b", PROJECT).prepare()
    assert raised.value.fields == {"folder": str(tmp_path / "a,b"), "reason": "character"}


def test_clear_deletes_what_the_workbench_made_and_leaves_what_is_not_its_own(home: Home) -> None:
    (home.data / "records").write_bytes(b"12345")
    (home.folder / "mine.txt").write_text("keep")
    home.clear()
    assert [path.name for path in home.folder.iterdir()] == ["mine.txt"]


def test_a_folder_of_somebody_else_is_neither_used_nor_cleared(tmp_path: Path) -> None:
    theirs = tmp_path / "data" / "photo"
    theirs.parent.mkdir()
    theirs.write_text("keep")
    home = Home(tmp_path, PROJECT)
    with pytest.raises(ConfigError, match="holds other files") as raised:
        home.prepare()
    assert raised.value.fields == {"folder": str(tmp_path), "reason": "not_own"}
    assert home.own_entries() == []
    home.clear()
    assert theirs.read_text() == "keep"


def test_a_clear_that_was_interrupted_can_be_repeated(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("workbench.host.home.shutil", stand_in(shutil, rmtree=interrupted))
        with pytest.raises(KeyboardInterrupt):
            home.clear()
    home.clear()
    assert not home.folder.exists()


def test_neither_the_root_nor_the_users_own_folder_is_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (tmp_path, Path("/")):
        with pytest.raises(ConfigError, match="is not a dedicated folder"):
            Home(folder, PROJECT).prepare()


def test_clear_removes_an_empty_folder(home: Home) -> None:
    home.clear()
    assert not home.folder.exists()


def test_sizes_are_counted_through_folders(home: Home) -> None:
    (home.data / "a").mkdir()
    (home.data / "a" / "x").write_bytes(b"123")
    (home.data / "y").write_bytes(b"12")
    assert folder_bytes(home.data) == 5


def test_the_environment_names_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "elsewhere"))
    assert Home.find().folder == tmp_path / "elsewhere"
    monkeypatch.delenv("WORKBENCH_HOME")
    assert Home.find().folder == PROJECT / ".workbench"


def test_a_folder_that_cannot_be_written_is_named() -> None:
    # Not even root may make a folder there.
    with pytest.raises(StorageError, match="cannot be written"):
        Home(Path("/proc/workbench"), PROJECT).prepare()


def test_a_second_demo_in_one_home_is_refused_and_one_elsewhere_is_not(tmp_path: Path) -> None:
    home, elsewhere = Home(tmp_path / "a", PROJECT), Home(tmp_path / "b", PROJECT)
    with home.sole("demo"), elsewhere.sole("demo"), pytest.raises(StorageError, match="another demo runs in"):
        home.sole("demo").__enter__()
    with home.sole("demo"):
        pass


@pytest.mark.parametrize("path", ["conf/secrets.yaml", "conf/secrets/scope/key"])
def test_git_leaves_secrets_out(path):
    command = ["git", "check-ignore", "--quiet", "--no-index", path]
    assert subprocess.run(command, cwd=PROJECT, check=False).returncode == 0


def test_processes_that_make_the_folder_at_the_same_time_all_use_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for number in range(100):
            homes = [Home(tmp_path / str(number), PROJECT) for _ in range(4)]
            begin = Barrier(4)
            list(pool.map(lambda home, begin=begin: (begin.wait(), home.prepare()), homes))
