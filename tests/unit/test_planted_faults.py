"""The list of planted faults fits the code, the tests and the page; `make faults` plants them."""

from __future__ import annotations

import re

import pytest

from bench.faults import FAULTS
from bench.rounds import PROJECT

PAGE = (PROJECT / "docs" / "reliability.md").read_text("utf-8")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.guard)
def test_a_guard_stands_once_in_its_module(fault) -> None:
    text = (PROJECT / fault.source).read_text("utf-8")
    assert text.count(fault.right) == 1
    compile(fault.broken(text), fault.module, "exec")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.guard)
def test_the_test_of_a_guard_exists(fault) -> None:
    assert f"\ndef test_{fault.test}(" in (PROJECT / fault.file).read_text("utf-8")


def test_the_page_lists_them_all_in_order() -> None:
    rows = re.findall(r"^\| (.+) \| `(test_\w+): (\w+)` \|$", PAGE, re.MULTILINE)
    there = [(fault.guard, fault.file.split("/")[-1].removesuffix(".py"), fault.test) for fault in FAULTS]
    assert rows == there
