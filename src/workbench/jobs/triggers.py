"""The slots of a job, by its trigger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from workbench.jobs.bundle_model import Job
from workbench.jobs.quartz import QuartzCron

#: Minimum of seconds between two runs of a schedule on Databricks, whatever its expression says.
SHORTEST_SECONDS = 10.0
#: Maximum count of missed slots; a scheduler that did not run for longer missed at least this number.
MOST_MISSED = 1000
_SECONDS = {"MINUTES": 60, "HOURS": 3600, "DAYS": 86400, "WEEKS": 604800}
#: After the first failure of a continuous job; doubled by each further one.
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 10.0, 600.0

Kind = Literal["schedule", "periodic", "continuous"]


@dataclass(frozen=True)
class Due:
    """A due slot, and the number of missed slots before it."""

    at: float
    missed: int


def kind_of(job: Job) -> Kind | None:
    """Return the kind of a job's trigger; None if it is paused, or the job is only started by hand."""
    if job.schedule and job.schedule.pause_status == "UNPAUSED":
        return "schedule"
    if job.trigger and job.trigger.pause_status == "UNPAUSED":
        return "periodic"
    if job.continuous and job.continuous.pause_status == "UNPAUSED":
        return "continuous"
    return None


def text_of(job: Job) -> str:
    """Return a trigger as text: when it changes, its slots begin again."""
    trigger = job.schedule or job.trigger or job.continuous
    return trigger.model_dump_json() if trigger else ""


def next_slot(job: Job, anchor: float, after: float) -> float | None:
    """Return the first slot after an instant.

    Args:
        job: One with a schedule or a periodic trigger.
        anchor: When the trigger was first seen, from where a periodic one counts.
        after: Seconds since 1970.
    """
    if job.trigger:
        step = job.trigger.periodic.interval * _SECONDS[job.trigger.periodic.unit]
        return anchor + (int((after - anchor) // step) + 1) * step
    if job.schedule is None:
        return None
    cron = QuartzCron.parse(job.schedule.quartz_cron_expression, job.schedule.timezone_id)
    slot = cron.after(datetime.fromtimestamp(after, timezone.utc))
    return slot.timestamp() if slot else None


def due(job: Job, anchor: float, latest: float, now: float) -> Due | None:
    """Return the latest slot that is due and was not claimed; slots before it count as missed.

    Args:
        job: As for `next_slot`.
        anchor: As for `next_slot`.
        latest: The slot that was claimed last; 0 if no slot was claimed.
        now: Seconds since 1970.
    """
    # The minimum distance is from slot to slot: the anchor is no run.
    first = next_slot(job, anchor, max(anchor, latest + SHORTEST_SECONDS - 1e-3))
    if first is None or first > now:
        return None
    last, missed, following = _last_slot(job, anchor, first, now), 0, first
    while following < last and missed < MOST_MISSED:
        missed, following = missed + 1, next_slot(job, anchor, following) or last
    return Due(last, missed)


def _last_slot(job: Job, anchor: float, first: float, now: float) -> float:
    """Return the last slot up to now; search back in growing steps, to a known slot at most."""
    span, last = 60.0, first
    while now - span > first:
        slot = next_slot(job, anchor, now - span)
        if slot is not None and slot <= now:
            last = slot
            break
        span *= 4
    following = next_slot(job, anchor, last)
    while following is not None and following <= now:
        last, following = following, next_slot(job, anchor, following)
    return last


def delay_after(failures: int) -> float:
    """Return how long a continuous job waits after this number of failures in a row."""
    return min(FIRST_DELAY_SECONDS * 2 ** (failures - 1), LONGEST_DELAY_SECONDS) if failures else 0.0
