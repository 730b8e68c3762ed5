"""Lists the tests of the last runs that took longer than 20 seconds, from their JUnit reports.

    python -m tests.support.times [FILE …]

Exits with 1 where one of them has no mark `slow`, so no reason. The set-up of fixtures that the whole session
shares is counted to no test.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import click

from tests.support.selection import SHARED_SECONDS

REPORTS = Path(__file__).parents[2] / ".cache" / "test-times"
MOST_SECONDS = 20.0


@dataclass(frozen=True)
class Timing:
    """How long a test took, and why it may."""

    test: str
    seconds: float
    reason: str

    def __str__(self) -> str:
        return f"{self.seconds:6.0f} s  {self.test}  ({self.reason or 'NOT MARKED slow'})"


def read(report: Path) -> list[Timing]:
    """Return the tests of a report, the longest first."""
    timings = []
    for case in ElementTree.parse(report).iter("testcase"):
        properties = [
            (each.get("name"), each.get("value", "")) for each in case.iterfind("properties/property")
        ]
        shared = sum(float(value) for name, value in properties if name == SHARED_SECONDS)
        test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        seconds = float(case.get("time", 0)) - shared
        timings.append(Timing(test, seconds, dict(properties).get("slow", "")))
    return sorted(timings, key=lambda timing: -timing.seconds)


def main(reports: Sequence[Path]) -> int:
    """Print the list of each report; return the exit code."""
    if not reports:
        click.echo(f"no report in {REPORTS}; try: make test", err=True)
        return 1
    long = [timing for report in reports for timing in _print_long(report)]
    return int(any(not timing.reason for timing in long))


def _print_long(report: Path) -> list[Timing]:
    timings = read(report)
    long = [timing for timing in timings if timing.seconds > MOST_SECONDS]
    total = sum(timing.seconds for timing in timings)
    click.echo(
        f"{report.name}: {len(timings)} tests, {total:.0f} s of work, {len(long)} above {MOST_SECONDS:.0f} s"
    )
    for timing in long:
        click.echo(timing)
    return long


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or sorted(REPORTS.glob("*.xml"))))
