"""The jobs' database: one run for a slot and no more runs than allowed, also across processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from threading import Barrier

import pytest

from topiclake.errors import ConfigError, StorageError
from workbench.host.processes import is_running, record_of
from workbench.jobs.history import History
from workbench.jobs.run_records import NewRun
from workbench.jobs.store import Store

JOB = NewRun("j", "{}", max_concurrent_runs=100)
ONE = NewRun("j", "{}", max_concurrent_runs=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "jobs" / "jobs.db")


def child(store: Store, body: str) -> subprocess.Popen[str]:
    """A Python process that has `store`, JOB and ONE, and does this."""
    head = f"""\
    from pathlib import Path
    from workbench.jobs.run_records import NewRun
    from workbench.jobs.store import Store
    store = Store(Path({str(store.file)!r}))
    JOB, ONE = NewRun("j", "{{}}", 100), NewRun("j", "{{}}", 1)
    """
    source = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_slot_is_claimed_once(store: Store) -> None:
    first = store.claim_slot(JOB, 10.0)
    assert first is not None
    assert (first.state, first.due) == ("PENDING", 10.0)
    assert store.claim_slot(JOB, 10.0) is None
    assert store.claim_slot(JOB, 20.0, missed=3) is not None
    assert store.claim_slot(JOB, 15.0) is None, "it is behind a slot that stands for it"
    assert History(store).slots("j") == [(10.0, 1, 0), (20.0, 2, 3)]


def test_processes_that_make_the_database_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    together = Barrier(8, timeout=120)

    def make(file: Path) -> Store:
        together.wait()
        return Store(file)

    with ThreadPoolExecutor(8) as pool:
        files = [tmp_path / str(at // 8) / "jobs.db" for at in range(160)]
        assert len(list(pool.map(make, files))) == 160


def test_a_transaction_keeps_others_from_reading_what_it_is_about_to_change(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        with store.transaction():
            other = pool.submit(store.begin, ONE)
            with pytest.raises(FutureTimeout):
                other.result(0.3)
        assert other.result(120).state == "RUNNING"


def test_three_processes_claim_each_slot_once(store: Store) -> None:
    body = "print(sum(store.claim_slot(JOB, float(slot)) is not None for slot in range(15)))"
    children = [child(store, body) for _ in range(3)]
    claimed = [int(one.communicate()[0]) for one in children]
    assert sum(claimed) == len(History(store).slots("j"))
    assert len(History(store).runs(limit=100)) == sum(claimed)


def test_a_run_is_taken_by_one_of_many(store: Store) -> None:
    run = store.claim_slot(JOB, 1.0)
    assert run is not None
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(lambda _: store.claim_run(run.id), range(8))) == [False] * 7 + [True]


def test_no_more_runs_than_allowed_across_processes(store: Store) -> None:
    body = "print(store.begin(ONE).state, flush=True)\ninput()"
    children = [child(store, body) for _ in range(3)]
    states = [one.stdout.readline().strip() for one in children if one.stdout]
    assert sorted(states) == ["RUNNING", "SKIPPED", "SKIPPED"]
    skipped = next(run for run in History(store).runs() if run.state == "SKIPPED")
    assert skipped.reason == "max_concurrent_runs is 1, and as many are active"
    assert store.add_when_idle(ONE) is None
    for one in children:
        one.communicate("\n")
    assert store.begin(ONE).state == "RUNNING"


def test_a_run_whose_process_was_killed_is_interrupted_with_its_tasks(store: Store) -> None:
    owner = child(store, "print(store.begin(ONE).id, flush=True)\ninput()")
    assert owner.stdout is not None
    run = int(owner.stdout.readline())
    task = subprocess.Popen(["sleep", "60"], start_new_session=True)
    History(store).begin_attempt(run, "a", 1, record_of(task.pid))
    assert store.mark_interrupted() == []
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert store.begin(ONE).state == "SKIPPED", "its task goes on"
    assert [one.id for one in store.mark_interrupted()] == [run]
    # Started from a shell's background, it ignores SIGINT.
    assert task.wait(120) in (-signal.SIGINT, -signal.SIGTERM)
    assert History(store).run(run).state == "INTERRUPTED"
    assert History(store).attempts(run)[0].state == "INTERRUPTED"
    assert store.begin(ONE).state == "RUNNING"


def test_a_process_id_that_is_used_again_is_another_process() -> None:
    own = record_of(os.getpid())
    assert is_running(own)
    assert not is_running(type(own)(own.pid, own.created - 60))


def test_what_was_not_committed_is_gone(store: Store) -> None:
    body = "import os\nwith store.transaction() as database:\n"
    body += "    database.execute(\"INSERT INTO slots VALUES ('j', 1, 1, 0)\")\n    os.kill(os.getpid(), 9)\n"
    assert child(store, body).wait() == -signal.SIGKILL
    assert History(store).slots("j") == []
    assert store.claim_slot(JOB, 1.0) is not None


def test_a_pending_run_is_cancelled_at_once_and_a_running_one_is_asked(store: Store) -> None:
    store.claim_slot(JOB, 1.0)
    running = store.begin(JOB)
    store.cancel(1)
    store.cancel(running.id)
    history = History(store)
    assert history.run(1).state == "CANCELED"
    assert (history.run(running.id).state, history.run(running.id).cancelled) == ("RUNNING", 1)
    assert not store.claim_run(1)


def test_a_trigger_begins_when_it_is_new_changed_or_back(store: Store) -> None:
    assert store.since("j", "every hour", 100.0) == (100.0, 0.0)
    assert store.since("j", "every hour", 200.0) == (100.0, 0.0)
    store.claim_slot(JOB, 150.0)
    assert store.since("j", "every hour", 200.0) == (100.0, 150.0)
    assert store.since("j", "every day", 300.0) == (300.0, 150.0)
    store.retain_triggers(["i", "j"])
    assert store.since("j", "every day", 400.0) == (300.0, 150.0)
    store.retain_triggers(["i"])
    assert store.since("j", "every day", 400.0) == (400.0, 150.0)


def test_an_end_is_written_once(store: Store) -> None:
    run = store.begin(JOB)
    assert store.end(run.id, "SUCCESS")
    assert not store.end(run.id, "INTERRUPTED")
    assert History(store).run(run.id).state == "SUCCESS"


def test_an_unknown_run_and_a_broken_database_are_named(store: Store) -> None:
    with pytest.raises(ConfigError, match="there is no run 9; try: python -m workbench job history"):
        store.cancel(9)
    with pytest.raises(ConfigError, match="there is no run 9"):
        History(store).run(9)
    broken = store.file.with_name("broken.db")
    broken.write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match=r"broken\.db cannot be used \(file is not a database\)"):
        Store(broken)


def test_only_its_owner_reads_the_database(store: Store) -> None:
    assert store.file.stat().st_mode & 0o777 == 0o600
