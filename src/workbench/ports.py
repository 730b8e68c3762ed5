"""Free ports on the loopback address."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Tell whether a service could listen on the port now."""
    with socket.socket() as probe:
        # As Java does: a connection of the service before, which still lingers, is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except (OSError, OverflowError):
            return False
    return True


def answers(port: int, seconds: float = 1.0) -> bool:
    """Tell whether anything accepts a connection on the port."""
    try:
        socket.create_connection((HOST, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def choose(names: Iterable[str], recorded: Mapping[str, int], avoid: Collection[int] = ()) -> dict[str, int]:
    """Return a free port for each name: the recorded one while it is free, else one that the system picks.

    Args:
        names: What the ports are for.
        recorded: The ports of the last time, by name.
        avoid: Ports that are spoken for, though nothing listens on them yet.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as held:
        for name in names:
            port = recorded.get(name, 0)
            taken = {*avoid, *chosen.values()}
            if not port or port in taken or not is_free(port):
                port = _pick(held, taken)
            chosen[name] = port
    return chosen


def _pick(held: ExitStack, taken: Collection[int]) -> int:
    while True:
        probe = held.enter_context(socket.socket())
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
        if port not in taken:
            return port
