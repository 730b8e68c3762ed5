"""Where the project, its jars and its state are: in a clone, and for a user of the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from topiclake.errors import PlatformError, StorageError
from workbench.host import installation
from workbench.host.files import replace_bytes
from workbench.host.home import Home
from workbench.host.installation import cache_folder, clone, find_project, jars_folder, spark_home

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user who has the wheel, and works in a folder without a project."""
    packaged, home = tmp_path / "site-packages" / "project", tmp_path / "user"
    for name in ("conf/base.yaml", "notebooks/gps_ingest.py", "jars/pom.xml", "jars/sha256sums"):
        (packaged / name).parent.mkdir(parents=True, exist_ok=True)
        (packaged / name).write_text(name)
    home.mkdir()
    monkeypatch.setattr(installation, "clone", lambda: None)
    monkeypatch.setattr(installation, "PACKAGED", packaged)
    monkeypatch.setenv("HOME", str(home))
    for variable in ("WORKBENCH_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(home)
    return home


def test_a_clone_is_found_from_a_folder_below_and_from_anywhere(tmp_path: Path) -> None:
    assert find_project(PROJECT / "tests" / "unit") == PROJECT
    assert find_project(tmp_path) == PROJECT
    assert clone() == PROJECT
    assert (jars_folder(), cache_folder()) == (PROJECT / "jars", PROJECT / ".cache")


def test_a_folder_with_a_configuration_is_the_project_below_it(user: Path) -> None:
    project = user / "orders"
    (project / "conf").mkdir(parents=True)
    (project / "conf" / "base.yaml").touch()
    (project / "deep" / "er").mkdir(parents=True)
    assert find_project(project / "deep" / "er") == project


def test_elsewhere_the_wheel_has_a_project_below_the_users_folder(user: Path) -> None:
    home = Home.find()
    project = user / ".local" / "share" / "topiclake" / "project"
    assert home == Home(project / ".workbench", project)
    assert (project / "conf" / "base.yaml").read_text() == "conf/base.yaml"
    assert not (project / "jars").exists()


def test_another_wheel_renews_what_the_user_has_not_edited_and_nothing_else(user: Path) -> None:
    project = find_project()
    edited, added = project / "notebooks" / "gps_ingest.py", project / "conf" / "pipelines" / "orders.yaml"
    edited.write_text("mine")
    added.parent.mkdir()
    added.write_text("mine, too")
    (installation.PACKAGED / "conf" / "base.yaml").write_text("newer")
    (installation.PACKAGED / "notebooks" / "gps_ingest.py").write_text("newer")
    assert find_project() == project
    assert (project / "conf" / "base.yaml").read_text() == "newer"
    assert (edited.read_text(), added.read_text()) == ("mine", "mine, too")


def test_a_copy_that_fails_is_named_and_continues_with_the_next_command(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(file: Path, content: bytes) -> None:
        if file.name == "gps_ingest.py":
            raise OSError(28, "No space left on device")
        replace_bytes(file, content)

    with monkeypatch.context() as patched:
        patched.setattr(installation, "replace_bytes", full_disk)
        with pytest.raises(StorageError, match="No space left") as raised:
            find_project()
    assert raised.value.fields["reason"] == "not_writable"
    assert (find_project() / "notebooks" / "gps_ingest.py").read_text() == "notebooks/gps_ingest.py"


def test_a_missing_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (spark_home() / "jars").is_dir()
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    with pytest.raises(PlatformError, match="PySpark is missing") as raised:
        spark_home()
    assert raised.value.fields["reason"] == "pyspark"


def test_the_folder_of_the_jars_is_another_one_for_another_lock(user: Path) -> None:
    before = jars_folder()
    assert before.parent == user / ".cache" / "topiclake"
    (installation.PACKAGED / "jars" / "sha256sums").write_text("another")
    assert jars_folder() != before


def test_the_variables_of_the_desktop_move_the_folders(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(user / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(user / "data"))
    assert cache_folder() == user / "cache" / "topiclake"
    assert Home.find().folder == user / "data" / "topiclake" / "project" / ".workbench"
