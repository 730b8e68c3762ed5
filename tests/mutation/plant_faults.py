"""Break each guard once, in a copy of the project, and see that its test fails.

Two copies, as there are two cores: while one JVM starts, the other one works.

python -m tests.mutation.plant_faults
python -m tests.mutation.plant_faults --only replay
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import click

from bench.rounds import PROJECT, console
from tests.mutation.faults import FAULTS, Fault

#: What pytest exits with: all green, some red. Everything else says nothing about a guard.
GREEN, RED = 0, 1
COPIES = 2


def copy_project(folder: Path) -> None:
    """Copy what git knows; packages, jars and fetched programs are the project's own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (source := PROJECT / name).is_file() and not name.startswith("jars/"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for name in ("jars", ".cache"):
        (folder / name).symlink_to(PROJECT / name)


def run_without(folder: Path, fault: Fault) -> int:
    """Run the tests of a guard on the copy without it; return pytest's exit code."""
    text = (PROJECT / fault.source).read_text("utf-8")
    (folder / fault.source).write_text(fault.broken(text), "utf-8")
    code = run_tests(folder, fault.selection)
    (folder / fault.source).write_text(text, "utf-8")
    return code


def run_tests(folder: Path, selection: Sequence[str]) -> int:
    """Run tests on the copy until the first one fails; return pytest's exit code."""
    log = folder / "pytest.log"
    with log.open("w") as out:
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selection],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code not in (GREEN, RED):
        console.print(log.read_text(errors="replace")[-3000:], markup=False, highlight=False)
    return code


def plant(folders: Sequence[Path], faults: Sequence[Fault]) -> int:
    """Plant each fault in a copy that is free; return how many of them no test noticed."""
    free: SimpleQueue[Path] = SimpleQueue()
    for folder in folders:
        free.put(folder)

    def is_noticed(fault: Fault) -> bool:
        folder = free.get()
        try:
            return run_without(folder, fault) == RED
        finally:
            free.put(folder)

    unnoticed = 0
    with ThreadPoolExecutor(len(folders)) as pool:
        for fault, noticed in zip(faults, pool.map(is_noticed, faults), strict=True):
            unnoticed += not noticed
            sign = "✓ failed" if noticed else "✗ did NOT fail"
            console.print(f"{sign} without: {fault.guard} ({fault.test})")
    return unnoticed


@click.command()
@click.option("--only", default="", help="Only guards whose words, module or test hold this text.")
def main(only: str) -> None:
    """Run the tests as it is, then each with its fault."""
    chosen = [fault for fault in FAULTS if only in f"{fault.guard} {fault.module} {fault.file} {fault.test}"]
    with tempfile.TemporaryDirectory(prefix="topiclake-faults-") as name:
        folders = [Path(name, str(number)) for number in range(COPIES)]
        for folder in folders:
            copy_project(folder)
        console.print(f"the tests of {len(chosen)} guards, as it is")
        selections = dict.fromkeys(test for fault in chosen for test in fault.selection)
        if run_tests(folders[0], ["-n", str(COPIES), "--dist", "loadfile", *selections]) != GREEN:
            raise click.ClickException(
                f"not green as it is:\n{(folders[0] / 'pytest.log').read_text()[-3000:]}"
            )
        unnoticed = plant(folders, chosen)
    if unnoticed:
        raise click.ClickException(f"{unnoticed} of {len(chosen)} faults went unnoticed")
    console.print(f"all {len(chosen)} faults were noticed")


if __name__ == "__main__":
    main()
