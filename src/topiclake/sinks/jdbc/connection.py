"""Databases: the login, the settings of sessions, and one connection pool per process."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine

from topiclake.config.settings import Settings
from topiclake.errors import ConfigError

DRIVERS = {"mariadb": "mariadb+pymysql", "mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
#: Time after the last use until connections are closed.
IDLE_SECONDS = 60.0
_CONNECT_SECONDS = 10
#: Time that a statement waits for another transaction; then the whole transaction is tried again.
_LOCK_SECONDS = 50
#: Idle time after which the server ends a transaction and its locks, as when the driver's machine is lost.
_SILENT_SECONDS = 3600
#: Settings of each session, whatever the server's defaults are. Without strict mode values are cut silently.
_MYSQL_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO', SESSION time_zone = '+00:00', "
    f"SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}, SESSION wait_timeout = {_SILENT_SECONDS}"
)
_POSTGRESQL_SESSION = {
    "TimeZone": "UTC",
    "lock_timeout": f"{_LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{_SILENT_SECONDS}s",
}


@dataclass(frozen=True)
class Database:
    """A database and the login to it; can be pickled, for Spark Connect."""

    kind: str
    host: str
    port: int
    name: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    tls: bool
    ca_file: str | None
    pool_size: int
    retry_seconds: float

    @classmethod
    def from_settings(cls, settings: Settings) -> Database:
        """Return the configured database.

        Raises:
            ConfigError: No database is configured, a secret cannot be read, or `ca_file` does not exist.
        """
        section = settings.database
        if section is None:
            raise ConfigError(
                "the configuration has no section database",
                "set database.url, username and password in conf",
                section="database",
            )
        if section.ca_file and not section.ca_file.is_file():
            raise ConfigError(
                f"database.ca_file {section.ca_file} does not exist",
                "set the path of a PEM file",
                file=str(section.ca_file),
            )
        return cls(
            section.kind,
            section.host,
            section.port,
            section.name,
            section.username.reveal(),
            section.password.reveal(),
            section.tls,
            str(section.ca_file) if section.ca_file else None,
            section.pool_size,
            section.retry_seconds,
        )

    @property
    def is_postgresql(self) -> bool:
        """Whether the database is PostgreSQL, not MariaDB or MySQL."""
        return self.kind == "postgresql"

    @property
    def address(self) -> str:
        """The database's name in errors."""
        return f"{self.kind} database {self.name} on {self.host}:{self.port}"

    def without_login(self, text: str) -> str:
        """Return a text as one line, without user and password."""
        for secret in filter(None, (self.password, self.username)):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "[REDACTED]", text)
        return " ".join(text.split())


@dataclass
class _Pool:
    engine: Engine
    users: int = 0
    timer: threading.Timer | None = None


#: Pools by login, in the process that runs the micro-batches.
_pools: dict[Database, _Pool] = {}
_lock = threading.Lock()


@contextmanager
def transaction(database: Database) -> Iterator[Connection]:
    """Take a connection from the pool, and commit at the end, or roll back after an error."""
    with _lock:
        pool = _pools.get(database)
        if pool is None:
            pool = _pools[database] = _Pool(_engine(database))
        pool.users += 1
        if pool.timer:
            pool.timer.cancel()
    try:
        with pool.engine.begin() as connection:
            yield connection
    finally:
        with _lock:
            pool.users -= 1
            pool.timer = threading.Timer(IDLE_SECONDS, _close_idle, [database])
            pool.timer.daemon = True
            pool.timer.start()


def _close_idle(database: Database) -> None:
    with _lock:
        pool = _pools.get(database)
        if pool is not None and not pool.users:
            _pools.pop(database).engine.dispose()


def _engine(database: Database) -> Engine:
    return create_engine(
        URL.create(DRIVERS[database.kind], None, None, database.host, database.port, database.name),
        connect_args=_postgresql(database) if database.is_postgresql else _mysql(database),
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_size=database.pool_size,
        max_overflow=0,
        pool_pre_ping=True,
    )


def _mysql(database: Database) -> dict[str, Any]:
    tls = (
        {"ssl": ssl.create_default_context(cafile=database.ca_file)}
        if database.tls
        else {"ssl_disabled": True}
    )
    return tls | {
        "user": database.username,
        # As text it would have to be Latin-1.
        "password": database.password.encode(),
        "charset": "utf8mb4",
        "init_command": _MYSQL_SESSION,
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": 600,
        "write_timeout": 600,
    }


def _postgresql(database: Database) -> dict[str, Any]:
    # Without a file, the system's certificate authorities, which need verify-full.
    tls = {"sslmode": "verify-full", "sslrootcert": database.ca_file or "system"}
    return (tls if database.tls else {"sslmode": "disable"}) | {
        "user": database.username,
        "password": database.password,
        "client_encoding": "utf8",
        "options": " ".join(f"-c {name}={value}" for name, value in _POSTGRESQL_SESSION.items()),
        "connect_timeout": _CONNECT_SECONDS,
        "gssencmode": "disable",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
