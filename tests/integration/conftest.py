"""What integration tests share: one plain broker and registry for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench import processes, services
from workbench.home import Home
from workbench.services import Addresses

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Addresses]]:
    """A home whose broker and registry run, without TLS and logins; tests take topics of their own."""
    home = Home(tmp_path_factory.mktemp("embedded"), PROJECT)
    addresses = services.up(home)
    yield home, addresses
    services.down(home)
    assert processes.marked(home) == []
