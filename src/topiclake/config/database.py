"""The database that rows are written to: the configuration's section `database`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from topiclake.config.secret import SecretReference, Section

#: The databases that a URL may name after `jdbc:`, each with its default port.
PORTS = {"mariadb": 3306, "mysql": 3306, "postgresql": 5432}
_URL = re.compile(
    r"jdbc:(?P<kind>mariadb|mysql|postgresql)://(?P<host>[\w.-]+|\[[0-9A-Fa-f:]+\])(?::(?P<port>\d{1,5}))?"
    r"/(?P<name>[\w$.-]+)"
)


def _check_url(value: str) -> str:
    if _URL.fullmatch(value):
        return value
    allowed = ", ".join(f"jdbc:{kind}://<host>:<port>/<database>" for kind in PORTS)
    raise ValueError(
        f"must be one of {allowed}, without options and login, which have separate keys: username, "
        "password, tls, ca_file"
    )


class DatabaseSettings(Section):
    """The connection to a database, and how long to wait for it."""

    #: The address as JDBC has it, without a login: `jdbc:postgresql://host/database`.
    url: Annotated[str, AfterValidator(_check_url)]
    #: The login of a user that may create and change tables.
    username: SecretReference
    #: The password of that login.
    password: SecretReference
    #: Whether the connection is encrypted, and the server's certificate and name are checked. Only a database
    #: on this machine needs no TLS.
    tls: bool = True
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate.
    ca_file: Path | None = None
    #: Maximum number of connections of one process. Raise it when more queries than that write at the same
    #: time. Lower it to the limit that the database allows the user.
    pool_size: Annotated[int, Field(ge=1, le=100)] = 5
    #: How long a micro-batch waits for a database that is unavailable, or for a lock, before the query fails.
    #: Raise it to survive longer outages.
    retry_seconds: Annotated[float, Field(ge=0)] = 300

    @property
    def kind(self) -> str:
        """One of `PORTS`."""
        return self._part("kind")

    @property
    def host(self) -> str:
        """The host's name or address."""
        return self._part("host").strip("[]")

    @property
    def port(self) -> int:
        """The port of the URL, or the default port of the database."""
        return int(self._part("port") or PORTS[self.kind])

    @property
    def name(self) -> str:
        """The database's name."""
        return self._part("name")

    def _part(self, part: str) -> str:
        match = _URL.fullmatch(self.url)
        return (match[part] or "") if match else ""
