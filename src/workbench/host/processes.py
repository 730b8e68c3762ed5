"""Processes that outlive the command that started them, and that the next command finds again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

import psutil
from psutil import Process

from workbench.host.home import Home, ProcessRecord

#: Creation times are computed from the clock, which may be set while a process runs.
CREATED_TOLERANCE_SECONDS = 2.0
GRACE_SECONDS = 20.0
#: The variables by which a process is recognized: the home that it belongs to, and the service that it runs.
HOME_MARK, SERVICE_MARK = "WORKBENCH_SERVICE_OF", "WORKBENCH_SERVICE"
#: The variable of a process that another signal than SIGTERM ends.
STOP_MARK = "WORKBENCH_STOP_SIGNAL"
_LAST_THREADS_SECONDS = 5.0
_KILLED_SECONDS = 5.0
_POLL_SECONDS = 0.02
_ERROR_LINES = 200
#: The most specific pattern first: the root cause of a stack trace, an exception, a line marked as an error.
_ERRORS = (
    re.compile(r"^Caused by:"),
    re.compile(r"^(Exception in thread .*|[\w.$]+(Exception|Error)\b)"),
    re.compile(r"\b(ERROR|FATAL|SEVERE)\b|^Error|[Cc]ould not"),
)


@contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and so of those that it starts, while a block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def marks(home: Home, service: str) -> dict[str, str]:
    """Return the environment variables by which a service of this home is found again."""
    return {HOME_MARK: str(home.folder), SERVICE_MARK: service}


def spawn(
    command: Sequence[str], output: IO[bytes], cwd: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in a separate session, without input, with `variables` over this process's."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env={**os.environ, **variables},
        start_new_session=True,
    )


def start(
    command: Sequence[str], log: Path, cwd: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process as `spawn` does, with its output in `log`; the previous log is renamed."""
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    # Ctrl-C between fork and exec would leave a process that has no mark yet.
    with log.open("wb") as output, signals_delayed():
        process = spawn(command, output, cwd, variables)
        # The kernel publishes the environment a moment after Popen returns.
        while process.poll() is None and not _environment(Process(process.pid)):
            time.sleep(0.001)
    return process


def record_of(pid: int) -> ProcessRecord:
    """Return a process that was just started; one that has ended already is never found again."""
    try:
        return ProcessRecord(pid, float(Process(pid).create_time()))
    except psutil.Error:
        return ProcessRecord(pid, 0.0)


def is_running(record: ProcessRecord) -> bool:
    """Return whether a process runs; a zombie does not, nor does another process that now has its id."""
    try:
        process = Process(record.pid)
        is_same_process = abs(process.create_time() - record.created) <= CREATED_TOLERANCE_SECONDS
    except psutil.Error:
        return False
    return is_same_process and not has_ended(process)


def has_ended(process: Process) -> bool:
    """Return whether a process has ended, also if its parent has not asked for its exit code."""
    try:
        # The first thread of a process may end before the others.
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def running(home: Home) -> dict[str, Process]:
    """Return the process of each service that runs in this home."""
    services: dict[str, Process] = {}
    # Its children, such as a worker's executors, have the same variables and the same session. A child with a
    # separate session, such as `setsid` with which Hadoop's Shell begins, is younger.
    for process in sorted(marked(home), key=lambda process: record_of(process.pid).created):
        name = service_of(process)
        if name and session_of(process.pid) == process.pid:
            services.setdefault(name, process)
    return services


def marked(home: Home, service: str | None = None) -> list[Process]:
    """Return the running processes that carry the mark of this home (and service), and their children."""
    variables = (marks(home, service) if service else {HOME_MARK: str(home.folder)}).items()
    return [process for process in psutil.process_iter() if variables <= _environment(process).items()]


def await_killed(seconds: float = _KILLED_SECONDS) -> None:
    """Wait until services that are ending have ended: their marks are gone earlier than ports and files."""
    deadline = time.monotonic() + seconds
    while any(map(_is_ending, psutil.process_iter())) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _is_ending(process: Process) -> bool:
    """Return whether a process may be a service that has given its memory back, but has not ended."""
    try:
        # A thread of the kernel has no memory either, but no session.
        is_service = session_of(process.pid) == process.pid
        return is_service and process.memory_info().vms == 0 and not has_ended(process)
    except psutil.Error:
        return False


def service_of(process: Process) -> str | None:
    """Return the service that a process runs; None when it is no service, or has ended."""
    return _environment(process).get(SERVICE_MARK)


def session_of(pid: int) -> int | None:
    """Return the session of a process; None when the process has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def stop(processes: Iterable[Process], grace_seconds: float = GRACE_SECONDS) -> None:
    """End processes: SIGTERM, then SIGKILL for those that still run; Ctrl-C while waiting kills at once.

    A process that was started with `STOP_MARK` gets that signal first.
    """
    running = list(processes)
    for process in running:
        _signal([process], signal.Signals[_environment(process).get(STOP_MARK, "SIGTERM")])
    try:
        running = still_running(running, grace_seconds)
    finally:
        _signal(running, signal.SIGKILL)
        still_running(running, _KILLED_SECONDS)


def still_running(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Wait until processes have ended, and return those that run after `seconds`."""
    deadline = time.monotonic() + seconds
    left = list(processes)
    while True:
        _, left = psutil.wait_procs(left, timeout=0)
        # A container's first process may never ask for the exit code of an orphan, which stays a zombie then.
        left = [process for process in left if not has_ended(process)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return how a process ended (negative: by that signal); None while it runs."""
    try:
        # Its first thread may have ended before the others: a zombie that has no exit code yet.
        return process.wait(timeout=_LAST_THREADS_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def last_error_line(log: Path) -> str:
    """Return the last line of a log that reports an error, or a text that says that no line does."""
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


def treat_sigterm_as_ctrl_c() -> None:
    """Raise KeyboardInterrupt for SIGTERM, so that it ends everything as cleanly as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def signals_delayed() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block ends; a child would inherit a signal mask."""
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


def _environment(process: Process) -> dict[str, str]:
    """Return the variables that a process was started with; none of a zombie or another user's process."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _signal(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
