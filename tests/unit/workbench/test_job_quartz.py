"""Quartz expressions: what they mean, in a time zone with summer time, and which are refused."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from topiclake.errors import ConfigError
from workbench.jobs.quartz import QuartzCron


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    cron, at = QuartzCron.parse(expression, zone), datetime.fromisoformat(after).replace(tzinfo=timezone.utc)
    found = []
    for _ in range(count):
        following = cron.after(at)
        assert following is not None
        found.append(following.strftime("%Y-%m-%d %H:%M:%S"))
        at = following
    return found


def days(expression: str, count: int = 4) -> list[str]:
    return [one[:10] for one in times(expression, "UTC", "2026-01-01", count)]


def test_six_and_seven_fields_are_read() -> None:
    assert times("5/20 30 12 ? * *", "UTC", "2026-01-01", 4) == [
        "2026-01-01 12:30:05",
        "2026-01-01 12:30:25",
        "2026-01-01 12:30:45",
        "2026-01-02 12:30:05",
    ]
    assert days("0 0 0 1 JAN ? 2030/2", 2) == ["2030-01-01", "2032-01-01"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # 2026-01-01 is a Thursday. Quartz counts the days of the week from SUN = 1.
        ("0 0 12 ? * 1", ["2026-01-04", "2026-01-11"]),
        ("0 0 12 ? * SUN", ["2026-01-04", "2026-01-11"]),
        ("0 0 12 ? * 7", ["2026-01-03", "2026-01-10"]),
        ("0 0 12 ? * L", ["2026-01-03", "2026-01-10"]),
        ("0 0 12 ? * 2-6", ["2026-01-01", "2026-01-02", "2026-01-05", "2026-01-06"]),
        ("0 0 12 ? * MON,WED", ["2026-01-05", "2026-01-07", "2026-01-12"]),
        ("0 0 12 ? * FRI-MON", ["2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05", "2026-01-09"]),
        ("0 0 12 ? * 2/3", ["2026-01-01", "2026-01-05", "2026-01-08"]),
        # From Saturday, nothing is left of the week.
        ("0 0 12 ? * 7/2", ["2026-01-03", "2026-01-10"]),
        ("0 0 12 ? * TUE,SAT/2", ["2026-01-03", "2026-01-06", "2026-01-10"]),
        ("0 0 12 ? * MON-MON", ["2026-01-05", "2026-01-12"]),
        ("0 0 12 ? * 1-SUN", ["2026-01-04", "2026-01-11"]),
        ("0 0 12 5-5 * ?", ["2026-01-05", "2026-02-05"]),
        ("0 0 12 1 3-MAR ?", ["2026-03-01", "2027-03-01"]),
        ("0 0 12 1 1 ? 2030-2030", ["2030-01-01"]),
        ("0 0 12 ? * 6L", ["2026-01-30", "2026-02-27"]),
        ("0 0 12 ? * FRIL", ["2026-01-30", "2026-02-27"]),
        ("0 0 12 ? * 6#3", ["2026-01-16", "2026-02-20"]),
        ("0 0 12 ? * FRI#3", ["2026-01-16", "2026-02-20"]),
        ("0 0 12 ? * MON#5", ["2026-03-30", "2026-06-29"]),
        ("0 0 12 L * ?", ["2026-01-31", "2026-02-28"]),
        ("0 0 12 L-3 * ?", ["2026-01-28", "2026-02-25", "2026-03-28"]),
        ("0 0 12 LW * ?", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 0 12 L-30 * ?", ["2026-01-01", "2026-03-01", "2026-05-01"]),
        # 2026-02-01 is a Sunday, 2026-08-01 a Saturday: the nearest weekday never leaves the month.
        ("0 0 12 1W * ?", ["2026-01-01", "2026-02-02", "2026-03-02"]),
        ("0 0 12 15W * ?", ["2026-01-15", "2026-02-16", "2026-03-16"]),
        ("0 0 12 1W AUG ?", ["2026-08-03"]),
        ("0 0 12 L-30W AUG ?", ["2026-08-03"]),
        ("0 0 12 31 * ?", ["2026-01-31", "2026-03-31", "2026-05-31"]),
        ("0 0 12 29 FEB ?", ["2028-02-29", "2032-02-29"]),
    ],
)
def test_special_characters_mean_what_quartz_says(expression: str, expected: list[str]) -> None:
    assert days(expression, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 5-5 * * ?", ["2026-01-01 05:00:00", "2026-01-02 05:00:00"]),
        ("0 0 5-5/2 * * ?", ["2026-01-01 05:00:00", "2026-01-02 05:00:00"]),
        ("0 30-30 * * * ?", ["2026-01-01 00:30:00", "2026-01-01 01:30:00"]),
        ("0 05-5,7 * * * ?", ["2026-01-01 00:05:00", "2026-01-01 00:07:00"]),
        ("9-9 0 0 * * ?", ["2026-01-01 00:00:09", "2026-01-02 00:00:09"]),
        ("0 58-1 0 * * ?", ["2026-01-01 00:01:00", "2026-01-01 00:58:00"]),
    ],
)
def test_a_range_from_a_value_to_itself_is_that_value(expression: str, expected: list[str]) -> None:
    assert times(expression, "UTC", "2026-01-01", 2) == expected


def test_times_are_local_in_their_zone() -> None:
    assert times("0 0 9 * * ?", "America/New_York", "2026-03-07", 2) == [
        "2026-03-07 14:00:00",
        "2026-03-08 13:00:00",
    ]


def test_a_time_that_the_clocks_skip_is_skipped() -> None:
    # Warsaw, 2026-03-29: from 02:00 (01:00 UTC) to 03:00.
    assert times("0 30 2 * * ?", "Europe/Warsaw", "2026-03-28", 3) == [
        "2026-03-28 01:30:00",
        "2026-03-30 00:30:00",
        "2026-03-31 00:30:00",
    ]
    assert times("0 0/30 * * * ?", "Europe/Warsaw", "2026-03-29 00:20:00", 3) == [
        "2026-03-29 00:30:00",
        "2026-03-29 01:00:00",
        "2026-03-29 01:30:00",
    ]


def test_a_time_that_the_clocks_show_twice_counts_once() -> None:
    # Warsaw, 2026-10-25: from 03:00 (01:00 UTC) back to 02:00.
    assert times("0 30 2 * * ?", "Europe/Warsaw", "2026-10-24 12:00:00", 2) == [
        "2026-10-25 00:30:00",
        "2026-10-26 01:30:00",
    ]
    # An hour without firings, as Quartz has it.
    every_half_hour = ["2026-10-25 00:30:00", "2026-10-25 02:00:00", "2026-10-25 02:30:00"]
    assert times("0 0/30 * * * ?", "Europe/Warsaw", "2026-10-25 00:10:00", 3) == every_half_hour
    assert times("0 0/30 * * * ?", "Europe/Warsaw", "2026-10-25 01:10:00", 2) == every_half_hour[1:]


def test_utc_has_every_hour() -> None:
    assert times("0 0 * * * ?", "UTC", "2026-10-25", 3) == [f"2026-10-25 0{hour}:00:00" for hour in (1, 2, 3)]


def test_an_expression_ends_with_its_years() -> None:
    cron = QuartzCron.parse("0 0 0 1 JAN ? 2040-2041", "UTC")
    assert cron.after(datetime(2041, 1, 1, tzinfo=timezone.utc)) is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("* * * * *", "5 fields"),
        ("0 0 12 * * ? * *", "8 fields"),
        ("0 0 12 * * *", "must be '?'"),
        ("0 0 12 ? * ?", "must be '?'"),
        ("60 0 12 * * ?", "out of range"),
        ("0 0 24 * * ?", "out of range"),
        ("0 0 12 32 * ?", "out of range"),
        ("0 0 12 ? * 0", "'0' is not a day of week"),
        ("0 0 12 ? * 8", "'8' is not a day of week"),
        ("0 0 12 ? * FRI#6", "'FRI#6' is not a day of week"),
        ("0 0 12 ? FOO MON", "'FOO' is not a month"),
        ("0 0/0 12 * * ?", "'0/0' is not a minutes"),
        ("0 0/75 * * * ?", "a step of minutes is at most 59, and not as in '0/75'"),
        ("0/60 0 * * * ?", "a step of seconds is at most 59"),
        ("0 0 1,*/24 * * ?", "a step of hours is at most 23"),
        ("0 0 0 1/32 * ?", "a step of day of month is at most 31"),
        ("0 0 0 1 1/13 ?", "a step of month is at most 12"),
        ("0 0 0 ? * 2/8", "a step of day of week is at most 7"),
        ("0 ? 12 * * ?", "'?' is not a minutes"),
        ("@ 0 12 * * ?", "'@' is not a seconds"),
        ("0 0 12 30 FEB ?", "never fires"),
        ("0 0 12 * * ? 2001", "never fires"),
        ("", "0 fields"),
    ],
)
def test_a_wrong_expression_is_refused(expression: str, message: str) -> None:
    with pytest.raises(ConfigError, match="Quartz") as raised:
        QuartzCron.parse(expression, "UTC")
    assert raised.value.fields["expression"] == expression
    assert message in raised.value.fields["detail"]


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError) as raised:
        QuartzCron.parse("0 0 12 * * ?", zone)
    assert raised.value.fields == {"timezone_id": zone}
