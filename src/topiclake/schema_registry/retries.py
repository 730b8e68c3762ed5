"""Asking again: for how long, how often within a minute, and with which pauses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential_jitter

from topiclake.errors import SchemaRegistryError

Answer = TypeVar("Answer")

#: The number of requests for one path within a minute, at most, retries included.
REQUESTS_PER_MINUTE = 5
MINUTE = 60.0
#: Seconds that one request may last, even if its caller has less patience.
SHORTEST_TIMEOUT = 5.0

_BACKOFF = wait_exponential_jitter(initial=1, max=15, jitter=1)
_LOG = logging.getLogger(__name__)


class FaultError(Exception):
    """No answer yet: why, what to do about it, and the seconds to wait at least before the next try."""

    def __init__(self, cause: str, remedy: str, wait: float = 0.0, **fields: object) -> None:
        super().__init__(cause)
        self.cause, self.remedy, self.wait, self.fields = cause, remedy, wait, fields


@dataclass(frozen=True)
class Clock:
    """The time, and a function that sleeps: both in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def persist(self, once: Callable[[float], Answer], patience: float, timeout: float) -> Answer:
        """Call `once` until it raises no FaultError; each fault that is waited for is logged.

        Args:
            once: Makes one request, which may last the seconds of its argument.
            patience: Seconds until the last try; 0 for one try.
            timeout: Seconds that a request may last at most.

        Raises:
            SchemaRegistryError: Still a fault when `patience` was over.
        """
        start = self.now()
        end = start + patience

        def log(state: RetryCallState) -> None:
            waited, pause = self.now() - start, state.upcoming_sleep
            _LOG.warning(
                "%s; next try in %.1f s (%.0f s of %.0f are over)", _fault(state), pause, waited, patience
            )

        repeated = Retrying(
            retry=retry_if_exception_type(FaultError),
            wait=lambda state: max(_BACKOFF(state), _fault(state).wait),
            stop=lambda state: self.now() + state.upcoming_sleep > end,
            sleep=self.sleep,
            before_sleep=log,
            reraise=True,
        )
        try:
            return repeated(lambda: once(min(timeout, max(end - self.now(), SHORTEST_TIMEOUT))))
        except FaultError as fault:
            waited = f"; gave up after {self.now() - start:.0f} s of {patience:.0f}"
            raise SchemaRegistryError(fault.cause + waited, fault.remedy, **fault.fields) from None


@dataclass
class _Requests:
    """The times of a path's requests within the last minute, and the fault of the last one, if any."""

    times: list[float]
    fault: FaultError | None = None


class RateLimit:
    """The limit of requests for each path within a minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._spent: dict[str, _Requests] = {}
        self._lock = threading.Lock()

    def spend(self, path: str) -> None:
        """Count one request for `path`.

        Raises:
            FaultError: Its minute is full; with the seconds until there is room, and what went wrong before.
        """
        now = self._now()
        with self._lock:
            for asked in [asked for asked, spent in self._spent.items() if now - spent.times[-1] >= MINUTE]:
                del self._spent[asked]
            spent = self._spent.get(path, _Requests([]))
            if wait := self._wait_for_room(spent):
                full = f"{path} was asked for {REQUESTS_PER_MINUTE} times within a minute"
                before = spent.fault or FaultError(full, "ask again in a minute", path=path, reason="budget")
                raise FaultError(before.cause, before.remedy, wait, **before.fields)
            self._spent[path] = _Requests([*spent.times[1 - REQUESTS_PER_MINUTE :], now])

    def failed(self, path: str, fault: FaultError) -> None:
        """Remember why the last request for `path` gave no answer."""
        with self._lock:
            if path in self._spent:
                self._spent[path].fault = fault

    def is_spent(self, path: str) -> bool:
        """Return whether `path` was answered, but so often that it can't be asked again now."""
        spent = self._spent.get(path)
        return spent is not None and spent.fault is None and self._wait_for_room(spent) > 0

    def forget(self, path: str) -> None:
        """Let `path` be asked again, because its content has just changed."""
        with self._lock:
            self._spent.pop(path, None)

    def _wait_for_room(self, spent: _Requests) -> float:
        """Seconds until the path may be asked again; 0 for now."""
        if len(spent.times) < REQUESTS_PER_MINUTE:
            return 0.0
        return max(0.0, spent.times[0] + MINUTE - self._now())


def _fault(state: RetryCallState) -> FaultError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, FaultError)  # noqa: S101 (for mypy: nothing else is retried)
    return error
