"""What tests of Spark Connect share."""

import pytest

from tests.support.connect import ConnectServer


@pytest.fixture(scope="session")
def connect_server(spark):
    """A Spark Connect server in the JVM of the session, until that JVM ends."""
    return ConnectServer(spark)
