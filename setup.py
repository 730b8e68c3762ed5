"""Build the wheel: the packages of src/, the project's files, and the jars of its Java classes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
#: Where the wheel has them (`workbench.host.installation`).
FOLDER = Path("workbench", "project")
#: As git names files. It knows those of the project: secrets of this machine stay here.
PATTERNS = (
    "conf",
    "notebooks",
    "data",
    "databricks.yml",
    "jars/pom.xml",
    "jars/*/pom.xml",
    "jars/sha256sums",
)
#: The modules of jars/ with classes of this project.
OWN_JARS = ("console", "store", "values")


class BuildWithProject(build_py):
    """Copies the project's files next to the packages, except for `pip install -e`."""

    def run(self) -> None:
        """Build the packages, and copy the files."""
        if not self.editable_mode:
            # An earlier build may have files that no longer exist.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for name in (*project_files(), *own_jars()):
                target = Path(self.build_lib, FOLDER, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)


def project_files() -> list[str]:
    """Return the names of the files that git knows."""
    listed = ["git", "ls-files", "-z", "--", *PATTERNS]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in names.split("\0") if name]


def own_jars() -> list[str]:
    """Return the names of the jars with classes of this project; end if one is not built."""
    names = [f"jars/{module}/target/jars/topiclake-{module}-1.jar" for module in OWN_JARS]
    for name in names:
        if not (ROOT / name).is_file():
            raise SystemExit(f"{name} is missing; try: make jars")
    return names


setup(cmdclass={"build_py": BuildWithProject})
