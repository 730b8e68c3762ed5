"""Quartz cron expressions in a time zone.

croniter computes the times. This module translates what Quartz writes differently: days of the week (from
SUN = 1), `6L`, `?`, and `n/step` in a week. It adds `LW`, `L-3` and `L-3W`, which croniter lacks.
The rules are those of https://www.quartz-scheduler.org/documentation/quartz-2.3.0/tutorials/crontrigger.html.

- One of day-of-month and day-of-week is `?`.

- A local time that does not exist, since clocks went forward over it, is skipped.

- A local time that exists twice, since clocks went back, counts the first time only.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import CroniterBadDateError, CroniterError, croniter

from topiclake.errors import ConfigError

_NUMBER = r"\d{1,4}"
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DAY = rf"[1-7]|{'|'.join(_DAYS)}"


def _list_of(value: str) -> str:
    entry = rf"(?:\*|(?:{value})(?:-(?:{value}))?)(?:/[1-9]\d?)?"
    return rf"{entry}(?:,{entry})*"


_LAST = r"L(?:-(?P<before>[1-9]|[12]\d|30))?(?P<weekday>W)?"
#: Seconds, minutes, hours, day of month, month, day of week, year.
_FIELDS = {
    "seconds": _list_of(_NUMBER),
    "minutes": _list_of(_NUMBER),
    "hours": _list_of(_NUMBER),
    "day of month": rf"\?|{_list_of(_NUMBER)}|\d\d?W|L(?:-\d\d?)?W?",
    "month": _list_of(rf"{_NUMBER}|{'|'.join(_MONTHS)}"),
    "day of week": rf"\?|{_list_of(_DAY)}|L|(?:{_DAY})L|(?:{_DAY})#[1-5]",
    "year": _list_of(r"\d{4}"),
}
#: Quartz refuses larger steps, which would have no effect.
_LARGEST_STEPS = {
    "seconds": 59,
    "minutes": 59,
    "hours": 23,
    "day of month": 31,
    "month": 12,
    "day of week": 7,
}


@dataclass(frozen=True)
class QuartzCron:
    """An expression that was checked, with its time zone.

    Attributes:
        expression: In croniter's form.
        zone: The time zone of its times.
        before_last: With `L-n` or `LW`: n, else None.
        on_weekday: With `W` after `L`: the nearest weekday within the month counts.
    """

    expression: str
    zone: ZoneInfo
    before_last: int | None = None
    on_weekday: bool = False

    @classmethod
    def parse(cls, expression: str, timezone_id: str) -> QuartzCron:
        """Check an expression.

        Raises:
            ConfigError: It is not a Quartz expression, never fires, or the time zone is unknown.
        """
        fields = expression.upper().split()
        if len(fields) not in (6, 7):
            raise _invalid(expression, f"it has {len(fields)} fields and not 6 or 7")
        for (name, pattern), field in zip(_FIELDS.items(), fields, strict=False):
            if not re.fullmatch(pattern, field):
                raise _invalid(expression, f"'{field}' is not a {name}")
            largest = _LARGEST_STEPS.get(name)
            if largest and any(int(step) > largest for step in re.findall(r"/(\d+)", field)):
                raise _invalid(expression, f"a step of {name} is at most {largest}, and not as in '{field}'")
        if [fields[3], fields[5]].count("?") != 1:
            raise _invalid(expression, "one of day of month and day of week must be '?', the other not")
        last = re.fullmatch(_LAST, fields[3])
        fields[3] = "*" if last and last[0] != "L" else fields[3]
        fields[4] = _numbered(fields[4], _MONTHS, 1)
        fields[5] = _day_of_week(fields[5])
        fields = [_without_equal_ends(field) for field in fields]
        before = int(last["before"] or 0) if last and last[0] != "L" else None
        parsed = cls(" ".join(fields), _zone(timezone_id), before, bool(last and last["weekday"]))
        try:
            fires = parsed.after(datetime.now(timezone.utc)) is not None
        except CroniterError as error:
            raise _invalid(expression, re.sub(r"^\[.*?\] ", "", str(error))) from None
        if not fires:
            raise _invalid(expression, "it never fires again")
        return parsed

    def after(self, instant: datetime) -> datetime | None:
        """Return the first time after an instant, in UTC; None if it does not come within fifty years."""
        local = instant.astimezone(self.zone).replace(tzinfo=None, fold=0)
        while (moment := self._next_local(local)) is not None:
            exact = _instant(moment, self.zone)
            if exact is not None and exact > instant:
                return exact
            local = moment
        return None

    def _next_local(self, local: datetime) -> datetime | None:
        count = croniter(self.expression, local, second_at_beginning=True)
        while True:
            try:
                moment: datetime = count.get_next(datetime)
            except CroniterBadDateError:
                return None
            if self.before_last is None or moment.date() == self._chosen_day(moment):
                return moment
            midnight = datetime.combine(moment.date() + timedelta(days=1), time())
            count.set_current(midnight - timedelta(seconds=1), force=True)

    def _chosen_day(self, moment: datetime) -> date | None:
        """Return the day of `L-n` or `LW` in a month."""
        day = calendar.monthrange(moment.year, moment.month)[1] - (self.before_last or 0)
        if day < 1:
            return None
        chosen = date(moment.year, moment.month, day)
        if not self.on_weekday or chosen.isoweekday() < 6:
            return chosen
        step = 1 if chosen.isoweekday() == 7 else -1
        moved = chosen + timedelta(days=step)
        # The nearest weekday may lie in another month; then the weekday on the other side is chosen.
        return moved if moved.month == chosen.month else chosen - timedelta(days=2 * step)


def _instant(local: datetime, zone: ZoneInfo) -> datetime | None:
    """Return a local time as UTC; None when clocks skipped it, the first when they showed it twice."""
    exact = local.replace(tzinfo=zone).astimezone(timezone.utc)
    return exact if exact.astimezone(zone).replace(tzinfo=None, fold=0) == local else None


def _numbered(field: str, names: Sequence[str], first: int) -> str:
    for number, name in enumerate(names, first):
        field = field.replace(name, str(number))
    return field


def _without_equal_ends(field: str) -> str:
    """Write 5-5 as 5, which it means in Quartz; croniter reads it as every value."""
    return re.sub(
        r"(\d+)-(\d+)(?:/\d+)?", lambda match: match[1] if int(match[1]) == int(match[2]) else match[0], field
    )


def _day_of_week(field: str) -> str:
    """Translate to croniter, which counts from SUN = 0 and writes the last Friday as L5."""
    if field == "L":
        return "6"
    numbered = re.sub(
        r"\b[1-7]\b(?!/)(?<!#\d)(?<!/\d)|\b[1-7](?=[L#/])", lambda day: str(int(day[0]) - 1), field
    )
    numbered = _numbered(numbered, _DAYS, 0)
    if numbered.endswith("L"):
        return f"L{numbered[0]}"
    # In Quartz, 2/3 continues to the end of the week.
    return re.sub(r"(?<!-)\b([0-6])/", r"\1-6/", numbered)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"'{name}' is not a time zone", "use UTC, or a zone such as Europe/Warsaw", timezone_id=name
        ) from None


def _invalid(expression: str, problem: str) -> ConfigError:
    return ConfigError(
        f"'{expression}' is not a Quartz cron expression: {problem}",
        "use for example 0 0/15 * * * ? (every quarter of an hour)",
        expression=expression,
        detail=problem,
    )
