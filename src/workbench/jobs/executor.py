"""`python -m workbench.jobs.executor RUN`: carries out one pending run, apart from the scheduler."""

from __future__ import annotations

import signal
import sys

from topiclake.errors import TopiclakeError
from workbench.host.home import Home
from workbench.host.processes import treat_sigterm_as_ctrl_c
from workbench.jobs.execution import Execution
from workbench.jobs.history import History
from workbench.jobs.notifications import end_event, notify, secret_address
from workbench.jobs.run_records import Run
from workbench.jobs.store import Store
from workbench.jobs.task_values import Command, notebook_command


def open_store(home: Home) -> Store:
    """Return the jobs' database of a home."""
    home.prepare()
    return Store(home.jobs / "jobs.db")


def execute_run(home: Home, store: Store, run: Run, command: Command = notebook_command) -> Run:
    """Carry out a run that this process owns, and send notifications of its begin and end."""
    log, address = home.jobs / "notifications.log", secret_address(home.project)
    notify(run, "on_start", log, address)
    try:
        execution = Execution(store, run, home.jobs, home.project, command)
    except TopiclakeError as error:
        store.end(run.id, "FAILED", str(error))
    else:
        execution.execute_run()
    ended = History(store).run(run.id)
    notify(ended, end_event(ended.state), log, address)
    return ended


def main(run: int) -> None:
    """Carry out a run, unless another process has taken it."""
    # A shell that starts the scheduler in the background makes it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    treat_sigterm_as_ctrl_c()
    home = Home.find()
    store = open_store(home)
    if store.claim_run(run):
        execute_run(home, store, History(store).run(run))


if __name__ == "__main__":
    main(int(sys.argv[1]))
