"""Processes that outlive the command that started them, and that the next command finds again."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil
from psutil import Process

from workbench.host.home import Home, ProcessRecord

#: Creation times are computed from the clock, which may be set while a process runs.
CREATED_TOLERANCE_SECONDS = 2.0
GRACE_SECONDS = 20.0
#: Holds the marks of a process that takes none on its command line.
MARKS_VARIABLE = "WORKBENCH_PROCESS_MARKS"
_LAST_THREADS_SECONDS = 5.0
_ERROR_LINES = 200
#: What tells most comes first: the root cause of a stack trace, an exception, a line that is marked as error.
_ERRORS = (
    re.compile(r"^Caused by:"),
    re.compile(r"^(Exception in thread .*|[\w.$]+(Exception|Error)\b)"),
    re.compile(r"\b(ERROR|FATAL|SEVERE)\b|^Error|[Cc]ould not"),
)
_children: dict[int, subprocess.Popen[bytes]] = {}


def marks(home: Home, service: str) -> list[str]:
    """Return the JVM options by which a process of this home is recognised, even when no record of it is."""
    return [f"-Dworkbench.home={home.folder}", f"-Dworkbench.service={service}"]


def marked_environment(home: Home, service: str) -> dict[str, str]:
    """Return the marks as a variable, for a program that would not take them as options."""
    return {MARKS_VARIABLE: "\n".join(marks(home, service))}


def start(
    command: Sequence[str], log: Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> ProcessRecord:
    """Start a process in its own session, with its output in `log`; the log before is kept beside it."""
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    # Ctrl-C between fork and exec would leave a process that has neither a record nor a mark yet.
    with log.open("wb") as output, signals_held():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        _children[process.pid] = process
        _await_arguments(process)
    return record_of(process.pid)


def _await_arguments(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process shows its marks: the kernel publishes them a moment after Popen returns."""
    with suppress(psutil.Error):
        while process.poll() is None and not Process(process.pid).cmdline():
            time.sleep(0.001)


def record_of(pid: int) -> ProcessRecord:
    """Return a process that was just started; one that has ended already is never found again."""
    try:
        return ProcessRecord(pid, float(Process(pid).create_time()))
    except psutil.Error:
        return ProcessRecord(pid, 0.0)


def is_running(record: ProcessRecord) -> bool:
    """Return whether a process goes on; a zombie does not, nor another one that has its id now."""
    try:
        process = Process(record.pid)
        same = abs(process.create_time() - record.created) <= CREATED_TOLERANCE_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def find(record: ProcessRecord, home: Home, service: str) -> Process | None:
    """Return the recorded process while it runs; None when it ended or its id belongs to another now."""
    try:
        process = Process(record.pid)
        if is_running(record):
            return process
        # A zombie has no command line any more.
        return process if set(marks(home, service)) <= _arguments(process) else None
    except psutil.Error:
        return None


def marked(home: Home, service: str | None = None) -> list[Process]:
    """Return the running processes that carry the mark of this home (and service), recorded or not."""
    wanted = set(marks(home, service)) if service else {marks(home, "")[0]}
    return [process for process in psutil.process_iter() if wanted <= _arguments(process)]


def service_of(process: Process) -> str:
    """Return the service that a marked process runs; empty when it has just ended."""
    prefix = "-Dworkbench.service="
    return next(
        (argument.removeprefix(prefix) for argument in _arguments(process) if argument.startswith(prefix)), ""
    )


def stop(processes: Iterable[Process], grace_seconds: float = GRACE_SECONDS) -> None:
    """End processes: SIGTERM, then SIGKILL for those that are left; Ctrl-C while waiting kills at once."""
    running = list(processes)
    _signal(running, "terminate")
    try:
        _, running = psutil.wait_procs(running, timeout=grace_seconds)
    finally:
        _signal(running, "kill")
        psutil.wait_procs(running, timeout=5)


def exit_code(record: ProcessRecord) -> int | None:
    """Return how a process ended (negative: by that signal), when this very program started it."""
    child = _children.get(record.pid)
    if child is None:
        return None
    try:
        # Its first thread may have ended before the others: a zombie that cannot be asked yet.
        return child.wait(timeout=_LAST_THREADS_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def last_error_line(log: Path) -> str:
    """Return the last line of a log that tells of an error, else say that there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 200_000))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return "it has no log"
    text_lines = [line.strip() for line in lines if line.strip()]
    if not text_lines:
        return "its log is empty"
    for pattern in _ERRORS:
        errors = [line for line in text_lines[-_ERROR_LINES:] if pattern.search(line)]
        if errors:
            return errors[-1][:400]
    return f"no error in its log, which ends with: {text_lines[-1][:400]}"


def take_sigterm_as_ctrl_c() -> None:
    """Raise KeyboardInterrupt where SIGTERM comes, so that what Ctrl-C ends well, it ends well too."""
    signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def signals_held() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block ends; a mask would be inherited by the child."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda arrived, _: signals.append(arrived))
    try:
        yield
    finally:
        for number, disposition in before.items():
            signal.signal(number, disposition)
        for arrived in signals:
            signal.raise_signal(arrived)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments(process: Process) -> set[str]:
    """Return a process's arguments, or the marks in its environment."""
    try:
        return set(process.cmdline()) | set(process.environ().get(MARKS_VARIABLE, "").split("\n"))
    except psutil.Error:
        return set()


def _signal(processes: Iterable[Process], verb: str) -> None:
    for process in processes:
        try:
            getattr(process, verb)()
        except psutil.NoSuchProcess:
            continue
