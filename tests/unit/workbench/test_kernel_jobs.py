"""Which failures of a cell are its interruption."""

from __future__ import annotations

import contextlib

import pytest
from py4j.protocol import Py4JNetworkError

from workbench.kernel.jobs import is_interrupt


def raised_behind(first: BaseException, second: BaseException) -> BaseException:
    """Raise `second` while `first` is on its way, as PySpark's clearing up does."""
    with contextlib.suppress(type(second)):
        try:
            raise first
        finally:
            raise second
    return second


@pytest.mark.parametrize(
    ("error", "interrupted"),
    [
        (KeyboardInterrupt(), True),
        (raised_behind(KeyboardInterrupt(), Py4JNetworkError("Answer from Java side is empty")), True),
        (raised_behind(KeyboardInterrupt(), ConnectionResetError()), True),
        (raised_behind(ValueError(), Py4JNetworkError()), False),
        (raised_behind(KeyboardInterrupt(), ValueError()), False),
        (None, False),
    ],
)
def test_an_interrupt_is_known_also_where_pysparks_clearing_up_failed_behind_it(error, interrupted) -> None:
    assert is_interrupt(error) is interrupted
