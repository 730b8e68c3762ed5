"""The one folder that holds everything the workbench keeps: state, logs, data and executed notebooks."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from topiclake.errors import ConfigError, StorageError
from workbench.host.files import replace_json, write_errors
from workbench.host.installation import find_project

HOME_VARIABLE = "WORKBENCH_HOME"
LOCK_SECONDS = 180.0
#: Marks a folder as a workbench's home. A folder of somebody else may hold `data` or `logs`, too.
MARKER = ".topiclake-workbench"
#: Entries of a home that `reset` deletes, the marker last: an interrupted `reset` can be repeated. Other
#: entries of the folder do not belong to the workbench.
OWN_ENTRIES = (
    "state.json",
    "logs",
    "data",
    "datalake",
    "dbfs",
    "runs",
    "tmp",
    "mounts.json",
    "spark",
    "lock",
    "demo.lock",
    "jobs",
    "job start.lock",
    "lab",
    MARKER,
)


@dataclass(frozen=True)
class ProcessRecord:
    """A process that the workbench started: its id, and when it was created, since ids are used again."""

    pid: int
    created: float


@dataclass
class State:
    """The state that one command records for the next.

    Attributes:
        ports: Port by name; stays when the services stop, so that addresses stay the same.
        processes: The services that should be running.
        extras: Services that were requested in addition to broker and registry, until `down`.
    """

    ports: dict[str, int] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)


_STATE = TypeAdapter(State)


@dataclass(frozen=True)
class Home:
    """The paths of one workbench.

    Attributes:
        folder: Where everything is kept: the environment's WORKBENCH_HOME, else `<project>/.workbench`.
        project: Configuration and notebooks.
    """

    folder: Path
    project: Path

    @classmethod
    def find(cls) -> Home:
        """Return the home that the environment asks for, else the project's own."""
        project = find_project()
        chosen = os.environ.get(HOME_VARIABLE)
        return cls(Path(chosen).expanduser().resolve() if chosen else project / ".workbench", project)

    @property
    def state_file(self) -> Path:
        """The ports and the services that should be running, as JSON."""
        return self.folder / "state.json"

    @property
    def logs(self) -> Path:
        """One log a service."""
        return self.folder / "logs"

    @property
    def data(self) -> Path:
        """The data of the services: `kafka` and `registry`."""
        return self.folder / "data"

    @property
    def datalake(self) -> Path:
        """The folder that plays blob storage."""
        return self.folder / "datalake"

    @property
    def runs(self) -> Path:
        """Executed notebooks."""
        return self.folder / "runs"

    @property
    def jobs(self) -> Path:
        """The jobs' database, and the logs and values of their runs."""
        return self.folder / "jobs"

    @property
    def lab(self) -> Path:
        """The files of JupyterLab: its settings, and the outputs of notebooks that were run in it."""
        return self.folder / "lab"

    @property
    def tmp(self) -> Path:
        """Temporary files of the services."""
        return self.folder / "tmp"

    def log(self, service: str) -> Path:
        """Return the log file of a service."""
        return self.logs / f"{service}.log"

    def prepare(self) -> None:
        """Create the folders, readable by their owner only.

        Raises:
            ConfigError: The path holds a character that Kafka or the registry's database interprets, or
                the folder holds what the workbench has not made.
            StorageError: The folder cannot be written.
        """
        self._require_own()
        if set(str(self.folder)) & set(",;\\\n"):
            raise ConfigError(
                f"the state folder {self.folder} holds a comma, semicolon or backslash",
                f"set {HOME_VARIABLE}=<another folder>",
                folder=str(self.folder),
                reason="character",
            )
        problem = f"the state folder {self.folder} cannot be written"
        with write_errors(problem, self.folder, f"set {HOME_VARIABLE}=<a folder of your own>"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # First, since another process that starts now refuses a folder with other files.
            (self.folder / MARKER).touch()
            for folder in (self.logs, self.data, self.datalake, self.runs, self.tmp):
                folder.mkdir(mode=0o700, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()

    def _require_own(self) -> None:
        if self.folder in (Path(self.folder.anchor), Path.home().resolve()):
            problem = "is not a dedicated folder"
        elif not self.folder.is_dir() or not any(self.folder.iterdir()) or self.is_marked:
            # In this order: the process that makes the folder may be doing it now, and marks it first.
            return
        else:
            problem = f"holds other files, and no {MARKER}, by which the workbench knows its own folder"
        raise ConfigError(
            f"the state folder {self.folder} {problem}",
            f"set {HOME_VARIABLE}=<an empty folder>",
            folder=str(self.folder),
            reason="not_own",
        )

    @property
    def is_marked(self) -> bool:
        """Whether the workbench has made this folder."""
        return (self.folder / MARKER).is_file()

    def load(self) -> State:
        """Return the recorded state; an absent or damaged file is an empty state.

        A damaged file loses nothing important. Ports are chosen again. Processes carry a mark of this home,
        by which `workbench.host.processes.marked` finds them.
        """
        try:
            return _STATE.validate_json(self.state_file.read_bytes())
        except (FileNotFoundError, ValueError):
            return State()

    def save(self, state: State) -> None:
        """Replace the recorded state in one step: a reader sees the old one or the new one, never half."""
        replace_json(self.state_file, asdict(state))

    @contextmanager
    def lock(self, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Keep other commands on this home out; the lock is released when its process ends, however it ends.

        Raises:
            StorageError: Another command holds it for longer than `seconds`.
        """
        self.prepare()
        with (self.folder / "lock").open("a") as file:
            deadline = time.monotonic() + seconds
            while not _try_lock(file.fileno()):
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"another command has been starting or stopping services in {self.folder} "
                        f"for {seconds:.0f} s",
                        "wait for it or end it",
                        folder=str(self.folder),
                        reason="locked",
                    )
                time.sleep(0.1)
            yield

    @contextmanager
    def sole(self, command: str) -> Iterator[None]:
        """Keep a second run of `command` out of this home; it is released like `lock`.

        Raises:
            StorageError: It runs already.
        """
        self.prepare()
        with (self.folder / f"{command}.lock").open("a") as file:
            if not _try_lock(file.fileno()):
                raise StorageError(
                    f"another {command} runs in {self.folder}",
                    f"wait for it, or WORKBENCH_HOME=<another folder> python -m workbench {command}",
                    folder=str(self.folder),
                    command=command,
                    reason="locked",
                )
            yield

    def own_entries(self) -> list[Path]:
        """Return the entries that `clear` would delete; none if the workbench has not made the folder."""
        if not self.is_marked:
            return []
        return [path for name in OWN_ENTRIES if (path := self.folder / name).exists()]

    def clear(self) -> None:
        """Delete what the workbench made, and the folder itself when nothing else is in it."""
        for path in self.own_entries():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()


def folder_bytes(path: Path) -> int:
    """Return the size of a file, or of all files below a folder, in bytes."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
