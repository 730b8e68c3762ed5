"""The list of planted faults fits the code, the tests and the page; `make faults` plants them."""

from __future__ import annotations

import re

import pytest

from bench.rounds import PROJECT
from tests.mutation.faults import FAULTS
from tests.support.selection import always_runs

PAGE = (PROJECT / "docs" / "reliability.md").read_text("utf-8")
#: What shows it, and where it runs if not in `make test`, of each row of the two tables.
CLAIMS = re.findall(r"^\| .+ \| (.*(?:`tests/|`make |`python -m ).*) \|(.*)\|$", PAGE, re.MULTILINE)
GUARDS = re.findall(r"^\| (.+) \| `(test_\w+): (\w+)` \|(.*)\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.guard)
def test_a_guard_stands_once_in_its_module(fault) -> None:
    text = (PROJECT / fault.source).read_text("utf-8")
    assert text.count(fault.right) == 1
    compile(fault.broken(text), fault.module, "exec")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.guard)
def test_the_test_of_a_guard_exists(fault) -> None:
    assert f"\ndef test_{fault.test}(" in (PROJECT / fault.file).read_text("utf-8")


def test_the_page_lists_them_all_in_order() -> None:
    rows = [row[:3] for row in GUARDS]
    there = [(fault.guard, fault.file.split("/")[-1].removesuffix(".py"), fault.test) for fault in FAULTS]
    assert rows == there


def test_each_claim_and_each_guard_is_shown_in_make_test_but_eight() -> None:
    elsewhere = [where.strip() for *_, where in [*CLAIMS, *GUARDS] if where.strip()]
    assert len(elsewhere) <= 8
    assert [where for where in elsewhere if not re.fullmatch(r"(bench|test-all): \S.+", where)] == []
    of_claims = [re.findall(r"`(tests/\S+\.py)`", shown) for shown, where in CLAIMS if not where.strip()]
    assert len(of_claims) > 10
    assert [files for files in of_claims if not any(always_runs(PROJECT / file) for file in files)] == []
    elsewhere_named = {test for _, _, test, where in GUARDS if where.strip()}
    faults = [fault for fault in FAULTS if fault.test not in elsewhere_named]
    assert [
        fault.guard for fault in faults if not always_runs(PROJECT / fault.file, f"test_{fault.test}")
    ] == []
