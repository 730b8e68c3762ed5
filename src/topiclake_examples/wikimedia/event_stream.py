"""Server-sent events, without loss when a connection ends; see https://html.spec.whatwg.org/#sse."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import requests
from requests_sse import EventSource, InvalidContentTypeError, InvalidStatusCodeError, ReadyState

from topiclake.errors import EventStreamError

_LOG = logging.getLogger(__name__)
#: Status codes of transient errors.
_TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
#: Pauses between two tries (s): each is twice as long as the one before, up to the second value.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0


@dataclass(frozen=True)
class ServerSentEvent:
    """An event as the server sent it.

    Attributes:
        id: The id by which the server resumes after the event; "" if it has none.
        data: Its text.
    """

    id: str
    data: str


class _BrokenOffError(Exception):
    """The connection ended; servers end connections now and then."""


def follow(
    url: str,
    *,
    user_agent: str,
    params: Mapping[str, str] | None = None,
    after: str | None = None,
    patience: float = 300,
    silence: float = 60,
) -> Iterator[ServerSentEvent]:
    """Yield a server's events for ever; a connection that ends is opened again after the last event.

    An event that was cut off comes again, whole. The server determines whether an event comes twice.

    Args:
        url: The stream.
        user_agent: Name of the client; Wikimedia refuses clients without it.
        params: Parameters of the first connection's query; later ones use the last event's id instead.
        after: The id of the last event that is known already.
        patience: Time without an event until retries end with an error (s).
        silence: Time without data until the connection counts as broken (s).

    Raises:
        EventStreamError: The server refuses permanently, or cannot be reached for `patience`; the remedy
            names the id to resume after.
    """
    last, failing_since, wait = after, None, _FIRST_WAIT
    while True:
        try:
            for event in _connected(url, user_agent, params if last is None else None, last, silence):
                failing_since, wait = None, _FIRST_WAIT
                last = event.id or last
                yield event
        except (_BrokenOffError, requests.RequestException, UnicodeDecodeError) as error:
            reason, now = _reason(error), time.monotonic()
            failing_since = now if failing_since is None else failing_since
            if _is_final(error) or now - failing_since > patience:
                raise EventStreamError(
                    f"{url} {reason}", _remedy(last), url=url, **_fields(error, last)
                ) from None
            pause = max(wait, _retry_after(error))
            _LOG.warning("%s %s; again in %.1f s, after event %s", url, reason, pause, last or "now")
            time.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT)


def _connected(
    url: str, user_agent: str, params: Mapping[str, str] | None, last: str | None, silence: float
) -> Iterator[ServerSentEvent]:
    """Yield the events of one connection; raises when it ends."""

    # The library would reconnect by itself, but not after an error's status. It also skips an event if a
    # connection breaks twice in a row between the event's id and its data.
    def ended() -> None:
        # If it cannot connect, it raises a more precise error itself.
        if source.ready_state is not ReadyState.CLOSED:
            raise _BrokenOffError

    source = EventSource(
        url,
        timeout=silence,
        max_connect_retry=0,
        on_error=ended,
        latest_event_id=last,
        headers={"User-Agent": user_agent},
        params=dict(params or {}),
    )
    with source:
        for event in source:
            if event.data:
                yield ServerSentEvent(event.last_event_id, event.data)


def _reason(error: Exception) -> str:
    if isinstance(error, InvalidStatusCodeError):
        return f"answered {error.status_code}"
    if isinstance(error, InvalidContentTypeError):
        return "sends no events (its answer is of another type than text/event-stream)"
    if isinstance(error, UnicodeDecodeError):
        return "sends what is no UTF-8"
    if isinstance(error, _BrokenOffError):
        return "ended the connection"
    return f"cannot be reached ({type(error).__name__})"


def _fields(error: Exception, last: str | None) -> dict[str, object]:
    """Return the status that a server answered, if any, and the last event before the error."""
    status = {"status": error.status_code} if isinstance(error, InvalidStatusCodeError) else {}
    return {**status, "reason": type(error).__name__.lstrip("_"), "last_event": last}


def _is_final(error: Exception) -> bool:
    if isinstance(error, InvalidStatusCodeError):
        return error.status_code not in _TRANSIENT_STATUSES
    return isinstance(error, InvalidContentTypeError | requests.exceptions.InvalidURL | ValueError)


def _retry_after(error: Exception) -> float:
    """Return the pause that a server asks for (s), or 0."""
    response = getattr(error, "response", None)
    retry_after = "" if response is None else response.headers.get("Retry-After", "")
    return min(float(retry_after), _LONGEST_WAIT) if retry_after.isdecimal() else 0.0


def _remedy(last: str | None) -> str:
    return f"run it again with after={last!r}" if last else "run it again later"
