"""The scheduler: each slot once, none lost, also when it is killed at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from topiclake.errors import ConfigError
from workbench.jobs import scheduler as scheduler_module
from workbench.jobs import triggers
from workbench.jobs.bundle_model import Job
from workbench.jobs.history import History
from workbench.jobs.run_records import NewRun
from workbench.jobs.scheduler import Scheduler
from workbench.jobs.store import Store

TASKS = [{"task_key": "a", "notebook_task": {"notebook_path": "/n.py"}}]
#: 2026-01-01 00:00:00 UTC.
START = 1767225600.0
QUARTERS = {"quartz_cron_expression": "0 0/15 * * * ?", "timezone_id": "UTC"}


def job(**more: Any) -> Job:
    return Job.model_validate({"tasks": TASKS, **more})


class World:
    """A database and a scheduler whose runs are only noted."""

    def __init__(self, folder: Path, **jobs: Job) -> None:
        self.store = Store(folder / "jobs.db")
        self.history = History(self.store)
        self.jobs: Mapping[str, Job] = jobs
        self.launched: list[int] = []
        self.reports: list[str] = []
        self.ended: list[str] = []

    def scheduler(self) -> Scheduler:
        return Scheduler(
            self.store,
            lambda: self.jobs,
            self.launch,
            self.reports.append,
            lambda run: self.ended.append(run.state),
        )

    def launch(self, run: int) -> subprocess.Popen[bytes]:
        self.launched.append(run)
        return subprocess.Popen(["true"])

    def slots(self) -> list[tuple[float, int]]:
        return [((due - START) / 60, missed) for due, _, missed in self.history.slots("j")]

    def finish(self, state: str = "SUCCESS") -> None:
        for run in self.history.active():
            self.store.end(run.id, state)


def test_a_slot_is_run_when_it_is_due_and_once(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS))
    scheduler, other = world.scheduler(), world.scheduler()
    for minute in range(31):
        for one in (scheduler, other):
            one.tick(START + 60 * minute)
        world.finish()
    assert world.slots() == [(15.0, 0), (30.0, 0)]
    assert [run.trigger for run in world.history.runs()] == ["schedule"] * 2


def test_slots_missed_while_no_scheduler_ran_become_one_run(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS))
    world.scheduler().tick(START)
    world.scheduler().tick(START + 65 * 60)
    assert world.slots() == [(60.0, 3)]
    world.finish()
    world.scheduler().tick(START + 10 * 86400)
    assert world.slots()[1:] == [(10 * 1440.0, 955)]


def test_a_new_a_changed_and_a_resumed_schedule_have_missed_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS))
    world.scheduler().tick(START + 59)
    world.jobs = {"j": job(schedule=QUARTERS | {"pause_status": "PAUSED"})}
    world.scheduler().tick(START + 20 * 60)
    world.jobs = {"j": job(schedule=QUARTERS)}
    world.scheduler().tick(START + 50 * 60)
    world.jobs = {"j": job(schedule=QUARTERS | {"timezone_id": "Europe/Warsaw"})}
    world.scheduler().tick(START + 70 * 60)
    assert world.slots() == []
    world.scheduler().tick(START + 75 * 60)
    assert world.slots() == [(75.0, 0)]


def test_a_run_that_was_claimed_before_a_kill_is_launched_by_the_next_scheduler(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS))
    world.scheduler().tick(START)
    run = world.store.claim_slot(NewRun("j", job().model_dump_json()), START + 900)
    assert run is not None
    world.scheduler().tick(START + 901)
    assert world.launched == [run.id]


def test_a_slot_is_skipped_while_the_job_has_its_most_runs(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS))
    scheduler = world.scheduler()
    for minute in (0, 15, 30):
        scheduler.tick(START + 60 * minute)
    assert [run.state for run in world.history.runs()] == ["SKIPPED", "PENDING"]
    assert world.ended == ["SKIPPED"]
    assert world.slots() == [(15.0, 0), (30.0, 0)]


def test_a_periodic_trigger_counts_from_when_it_was_first_seen(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(trigger={"periodic": {"interval": 2, "unit": "HOURS"}}))
    for minute in (7, 126, 127, 128, 250, 500):
        world.scheduler().tick(START + 60 * minute)
        world.finish()
    assert world.slots() == [(127.0, 0), (247.0, 0), (487.0, 1)]


def test_a_continuous_job_always_has_one_run_and_waits_longer_after_each_failure(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(continuous={}))
    scheduler = world.scheduler()
    scheduler.tick(time.time())
    scheduler.tick(time.time())
    assert len(world.history.runs()) == 1
    for failures, delay in ((1, 10), (2, 20), (3, 40)):
        world.finish("FAILED")
        scheduler.tick(time.time() + delay - 2)
        assert len(world.history.runs()) == failures
        scheduler.tick(time.time() + delay + 2)
        assert len(world.history.runs()) == failures + 1
    world.finish("SUCCESS")
    scheduler.tick(time.time())
    assert len(world.history.runs()) == 5
    assert triggers.delay_after(50) == 600


def test_two_slots_of_a_schedule_are_ten_seconds_apart(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS | {"quartz_cron_expression": "* * * * * ?"}))
    scheduler = world.scheduler()
    for second in range(25):
        scheduler.tick(START + second)
        world.finish()
    assert [due - START for due, _, _ in world.history.slots("j")] == [1.0, 11.0, 21.0]


def test_a_slot_right_after_its_trigger_was_first_seen_is_run(tmp_path: Path) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS))
    for second in (-3, 0):
        world.scheduler().tick(START + 900 + second)
    assert world.slots() == [(15.0, 0)]


@pytest.mark.parametrize("without", [{}, {"j": job(continuous={})}], ids=["no file", "another trigger"])
def test_a_schedule_that_was_away_has_missed_nothing(tmp_path: Path, without: Mapping[str, Job]) -> None:
    world = World(tmp_path, j=job(schedule=QUARTERS))
    world.scheduler().tick(START)
    world.jobs = without
    world.scheduler().tick(START + 60)
    world.finish()
    world.jobs = {"j": job(schedule=QUARTERS)}
    world.scheduler().tick(START + 7 * 86400 + 60)
    assert world.slots() == []
    world.scheduler().tick(START + 7 * 86400 + 900)
    assert world.slots() == [(7 * 1440 + 15.0, 0)]


def test_a_slot_is_run_while_the_files_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "RELOAD_SECONDS", 0)
    world = World(tmp_path, j=job(schedule=QUARTERS))
    scheduler = world.scheduler()
    scheduler.tick(START + 890)
    scheduler._load = Mock(side_effect=ConfigError("j.job.yml, line 3: not valid YAML"))
    scheduler._reload()
    sentence = "j.job.yml, line 3: not valid YAML [TL-CONFIG-001]"
    assert world.reports == [f"✗ the jobs stay as they were: {sentence}"]
    scheduler.tick(START + 905)
    assert world.slots() == [(15.0, 0)]


SCHEDULER = """\
    import subprocess, sys
    from pathlib import Path
    from workbench.jobs import triggers
    from workbench.jobs.bundle_model import Job
    from workbench.jobs.scheduler import Scheduler
    from workbench.jobs.store import Store
    folder = Path(sys.argv[1])
    job = Job.model_validate_json((folder / "job.json").read_text())
    triggers.SHORTEST_SECONDS = 1e-3
    def launch(run):
        command = [sys.executable, "-c", (folder / "executor.py").read_text(), str(folder), str(run)]
        return subprocess.Popen(command, start_new_session=True)
    scheduler = Scheduler(Store(folder / "jobs.db"), lambda: {"j": job}, launch, print)
    scheduler.run_forever()
"""
#: The run's work is one line in a file.
EXECUTOR = """\
    import sys
    from pathlib import Path
    from workbench.jobs.store import Store
    folder, run = Path(sys.argv[1]), int(sys.argv[2])
    store = Store(folder / "jobs.db")
    if store.claim_run(run):
        with open(folder / "done", "a") as file:
            file.write(f"{run}\\n")
        store.end(run, "SUCCESS")
"""


@pytest.mark.thorough("kills at random moments")
def test_killed_at_random_moments_it_runs_each_slot_once_and_loses_none(tmp_path: Path) -> None:
    every_second = QUARTERS | {"quartz_cron_expression": "* * * * * ?"}
    (tmp_path / "job.json").write_text(job(schedule=every_second, max_concurrent_runs=99).model_dump_json())
    (tmp_path / "executor.py").write_text(textwrap.dedent(EXECUTOR))
    chance, command = random.Random(7), [sys.executable, "-c", textwrap.dedent(SCHEDULER), str(tmp_path)]
    for kill in range(6):
        # Two at once, now and then.
        started = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(1 + (kill == 3))]
        time.sleep(1.0 + 2 * chance.random())
        for one in started:
            one.kill()
            one.wait()
    last = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    history = History(Store(tmp_path / "jobs.db"))
    deadline = time.monotonic() + 30
    while (len(history.slots("j")) < 4 or history.active()) and time.monotonic() < deadline:
        time.sleep(0.1)
    last.kill()
    last.wait()
    check_slots(history, tmp_path / "done")


def check_slots(history: History, done: Path) -> None:
    slots = history.slots("j")
    assert len(slots) >= 4
    for (before, _, _), (due, _, missed) in pairwise(slots):
        assert due - before == missed + 1, "every second is a slot or counted as missed"
    deadline = time.monotonic() + 20
    while history.active() and time.monotonic() < deadline:
        time.sleep(0.1)
    ran = Counter(map(int, done.read_text().split()))
    assert set(ran.values()) == {1}, "no run was carried out twice"
    unfinished = {run.id for run in history.runs(limit=999) if run.state == "PENDING"}
    assert ran.keys() | unfinished == {run for _, run, _ in slots}


@pytest.mark.parametrize("kind", ["schedule", "trigger", "continuous"])
def test_what_is_paused_starts_nothing(tmp_path: Path, kind: str) -> None:
    given = {
        "schedule": QUARTERS,
        "trigger": {"periodic": {"interval": 1, "unit": "HOURS"}},
        "continuous": {},
    }
    world = World(tmp_path, j=job(**{kind: given[kind] | {"pause_status": "PAUSED"}}))
    world.scheduler().tick(START)
    world.scheduler().tick(START + 86400)
    assert world.history.runs() == []
