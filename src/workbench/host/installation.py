"""Where the project, its jars and fetched programs are: in a clone, or in folders of the user of a wheel."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.util import find_spec
from pathlib import Path

from topiclake.errors import PlatformError
from workbench.host.files import replace_bytes, replace_json, write_errors

#: The project's files in a wheel (setup.py). A clone has no such folder.
PACKAGED = Path(__file__).parents[1] / "project"


def clone() -> Path | None:
    """Return the clone that this package belongs to, or None if it was installed from a wheel."""
    folder = Path(__file__).resolve().parents[3]
    return folder if (folder / "jars" / "pom.xml").is_file() else None


def find_project(start: Path | None = None) -> Path:
    """Return the nearest folder with `conf/base.yaml` at or above `start`, else the clone or the user's copy.

    Args:
        start: Where to begin; the current folder by default.

    Raises:
        StorageError: The user's copy of the wheel's project cannot be written.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "conf" / "base.yaml").is_file():
            return folder
    return clone() or _copied_project()


def jars_folder() -> Path:
    """Return the folder of the jars by module. That of a wheel exists after `host.jars` has fetched them."""
    if folder := clone():
        return folder / "jars"
    digest = hashlib.sha256()
    for file in sorted(path for path in (PACKAGED / "jars").rglob("*") if path.is_file()):
        digest.update(file.read_bytes())
    return cache_folder() / f"jars-{digest.hexdigest()[:12]}"


def spark_home() -> Path:
    """Return the Spark that the PySpark of this Python brings; an import of PySpark would take 0.3 s.

    Raises:
        PlatformError: There is no PySpark.
    """
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise PlatformError("PySpark is missing", "pip install 'topiclake[workbench]'", reason="pyspark")
    return Path(package.origin).parent


def cache_folder() -> Path:
    """Return the cache folder for downloads."""
    if folder := clone():
        return folder / ".cache"
    return _user_folder("XDG_CACHE_HOME", ".cache")


def _user_folder(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / usual, "topiclake").resolve()


def _copied_project() -> Path:
    """Return the user's copy of the wheel's project; renew the files that the user has not edited."""
    folder = _user_folder("XDG_DATA_HOME", ".local/share") / "project"
    # The checksums of the copied files: another wheel renews the copy, and an interrupted copy continues.
    record = folder.with_name("project.json")
    packaged = {name: _sum(PACKAGED / name) for name in _packaged_files()}
    problem = f"the project's files cannot be copied to {folder}"
    with write_errors(problem, folder, "set XDG_DATA_HOME=<a folder of your own>"):
        copied = json.loads(record.read_bytes()) if record.is_file() else {}
        if copied != packaged:
            for name in packaged:
                file = folder / name
                if not file.exists() or _sum(file) == copied.get(name):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    replace_bytes(file, (PACKAGED / name).read_bytes())
            replace_json(record, packaged)
    return folder


def _packaged_files() -> list[str]:
    files = (path for path in PACKAGED.rglob("*") if path.is_file())
    names = (path.relative_to(PACKAGED) for path in files)
    return [str(name) for name in names if name.parts[0] != "jars" and "__pycache__" not in name.parts]


def _sum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
