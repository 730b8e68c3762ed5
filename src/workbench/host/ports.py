"""Free ports on the loopback address."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

import requests

HOST = "127.0.0.1"
#: Above the usual ports of servers, and below the ephemeral ports of outgoing connections. Any client may
#: take an ephemeral port between the choice and the service's start.
_PORTS = range(10_000, 32_768)


def is_free(port: int) -> bool:
    """Return whether a service could listen on the port now."""
    with socket.socket() as probe:
        # As Java does: a lingering connection of the previous service does not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except (OSError, OverflowError):
            return False
    return True


def answers(port: int, seconds: float = 1.0) -> bool:
    """Return whether anything accepts a connection on the port."""
    try:
        socket.create_connection((HOST, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def send_request(port: int, method: str, url: str, seconds: float, **options: Any) -> requests.Response | str:  # noqa: ANN401
    """Send a request to a service of this machine; return its answer, or the cause of the failure.

    Args:
        port: The port of the service.
        method: The HTTP method.
        url: The address, with its scheme.
        seconds: How long a connection may take; an answer may take 10 seconds in any case.
        options: Further arguments of `requests`.
    """
    if not answers(port, seconds):
        return "nothing listens on its port"
    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy knows nothing of this machine's own ports
            return session.request(method, url, timeout=max(seconds, 10.0), **options)
    except requests.RequestException as error:
        return type(error).__name__


def refusal(
    port: int,
    method: str,
    url: str,
    seconds: float,
    accepted: Collection[int] = (),
    **options: Any,  # noqa: ANN401
) -> str | None:
    """Send a request; return None for a success or an `accepted` status, else the problem.

    Arguments are those of `send_request`.
    """
    response = send_request(port, method, url, seconds, **options)
    if isinstance(response, str):
        return response
    return None if response.ok or response.status_code in accepted else f"HTTP status {response.status_code}"


def choose(names: Iterable[str], recorded: Mapping[str, int], avoid: Collection[int] = ()) -> dict[str, int]:
    """Return a free port for each name: the recorded one while it is free, else one by chance.

    Args:
        names: A name for each port.
        recorded: The ports of the last time, by name.
        avoid: Ports that are reserved, though nothing listens on them yet.

    Raises:
        OSError: No port is free.
    """
    chosen: dict[str, int] = {}
    for name in names:
        port = recorded.get(name, 0)
        reserved = {*avoid, *chosen.values()}
        is_usable = port and port not in reserved and is_free(port)
        chosen[name] = port if is_usable else _pick(reserved)
    return chosen


def _pick(reserved: Collection[int]) -> int:
    # Two commands at once must not try the same ports.
    start = random.SystemRandom().randrange(len(_PORTS))
    for port in chain(_PORTS[start:], _PORTS[:start]):
        if port not in reserved and is_free(port):
            return port
    raise OSError(
        errno.EADDRINUSE, f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} of {HOST} is free"
    )
