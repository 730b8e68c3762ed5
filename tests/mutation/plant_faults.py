"""Break each guard once, in a copy of the project, and see that its test fails.

Two copies, as there are two cores. The runs on one share a JVM, a broker and a registry: to start them takes
longer than most tests.

python -m tests.mutation.plant_faults
python -m tests.mutation.plant_faults --only replay
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

import click

from bench.rounds import PROJECT, console
from tests.mutation.faults import FAULTS, Fault
from tests.support.warm_jvm import WarmJvm
from workbench.host.home import Home
from workbench.services import control as services

#: What pytest exits with: all green, some red. Everything else says nothing about a guard.
GREEN, RED = 0, 1
COPIES = 2

#: The JVM keeps its local files in the folder of the first run, which pytest would remove after three runs.
_KEEP_FOLDERS = ("-p", "no:cacheprovider", "-o", "tmp_path_retention_count=100000")


class Copy:
    """A copy of what git knows, with a broker, a registry and a JVM for all runs of pytest on it.

    Packages, jars and fetched programs are the project's.
    """

    #: A JVM starts with variables of this process.
    _starting = Lock()

    def __init__(self, folder: Path) -> None:
        self._folder, self._home = folder, Home(folder / "home", PROJECT)
        self._jvm: WarmJvm | None = None
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

    def stop(self) -> None:
        """Stop the services and the JVM."""
        services.down(self._home)
        if self._jvm is not None and self._jvm.is_alive:
            self._jvm.stop()

    def run_without(self, fault: Fault) -> int:
        """Run the tests of a guard without it; return pytest's exit code."""
        text = (PROJECT / fault.source).read_text("utf-8")
        (self._folder / fault.source).write_text(fault.broken(text), "utf-8")
        code = self.run_tests(fault.selection)
        (self._folder / fault.source).write_text(text, "utf-8")
        return code

    def run_tests(self, selection: Sequence[str]) -> int:
        """Run tests until the first one fails; return pytest's exit code."""
        log = self._folder / "pytest.log"
        with log.open("w") as out:
            code = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", *_KEEP_FOLDERS, *selection],
                cwd=self._folder,
                env=os.environ | self._variables(),
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if code not in (GREEN, RED):
            console.print(log.read_text(errors="replace")[-3000:], markup=False, highlight=False)
        return code

    def _variables(self) -> dict[str, str]:
        modules = {"PYTHONPATH": f"{self._folder / 'src'}{os.pathsep}{self._folder}"}
        with self._starting:
            services.up(self._home)
            # Without its guard, a record may have ended the last one.
            if self._jvm is None or not self._jvm.is_alive:
                self._jvm = WarmJvm(self._folder / "jvm", PROJECT, modules)
        folders = {"TOPICLAKE_TEST_HOME": str(self._home.folder), "PYTEST_DEBUG_TEMPROOT": str(self._folder)}
        return modules | self._jvm.environment() | folders


Task = TypeVar("Task")


def on_free_copies(
    copies: Sequence[Copy], run: Callable[[Copy, Task], int], tasks: Sequence[Task]
) -> Iterator[tuple[Task, int]]:
    """Run each task on a copy that is free; yield the tasks with what `run` returned, in order."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def run_on_free(task: Task) -> int:
        copy = free.get()
        try:
            return run(copy, task)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(tasks, pool.map(run_on_free, tasks), strict=True)


def require_green(copies: Sequence[Copy], faults: Sequence[Fault]) -> None:
    """Run the tests of all guards as they are, file by file."""
    selections = [
        list(dict.fromkeys(test for fault in faults if fault.file == file for test in fault.selection))
        for file in dict.fromkeys(fault.file for fault in faults)
    ]
    for selection, code in on_free_copies(copies, Copy.run_tests, selections):
        if code != GREEN:
            raise click.ClickException(f"not green as it is: {' '.join(selection)}")


def plant(copies: Sequence[Copy], faults: Sequence[Fault]) -> int:
    """Plant each fault in a copy; return how many of them no test noticed."""
    unnoticed = 0
    for fault, code in on_free_copies(copies, Copy.run_without, faults):
        unnoticed += code != RED
        sign = "✓ failed" if code == RED else "✗ did NOT fail"
        console.print(f"{sign} without: {fault.guard} ({fault.test})")
    return unnoticed


@click.command()
@click.option("--only", default="", help="Only guards whose words, module or test hold this text.")
def main(only: str) -> None:
    """Run the tests as it is, then each with its fault."""
    chosen = [fault for fault in FAULTS if only in f"{fault.guard} {fault.module} {fault.file} {fault.test}"]
    with tempfile.TemporaryDirectory(prefix="topiclake-faults-") as name, ExitStack() as stack:
        copies = []
        for number in range(COPIES):
            copies.append(Copy(Path(name, str(number))))
            stack.callback(copies[-1].stop)
        console.print(f"the tests of {len(chosen)} guards, as it is")
        require_green(copies, chosen)
        unnoticed = plant(copies, chosen)
    if unnoticed:
        raise click.ClickException(f"{unnoticed} of {len(chosen)} faults went unnoticed")
    console.print(f"all {len(chosen)} faults were noticed")


if __name__ == "__main__":
    main()
