"""Rows of the configured database, read back by another client than the sink."""

from __future__ import annotations

import ssl
from typing import Any

import topiclake as tl
from topiclake.errors import ConfigError

_DRIVERS = {"mariadb": "mariadb+pymysql", "mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}


def database_rows(settings: tl.Settings, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query in the database that `tl.start_upsert` writes to.

    Args:
        settings: Its section `database`.
        sql: One SELECT.

    Raises:
        ConfigError: There is no section `database`.
    """
    from sqlalchemy import URL, create_engine, text

    section = settings.database
    if section is None:
        raise ConfigError(
            "the configuration has no section database", "set database.url in conf", section="database"
        )
    address = URL.create(
        _DRIVERS[section.kind],
        section.username.reveal(),
        section.password.reveal(),
        section.host,
        section.port,
        section.name,
    )
    authorities = str(section.ca_file) if section.ca_file else None
    options: dict[str, Any]
    if section.kind == "postgresql":
        options = {"sslmode": "verify-full", "sslrootcert": authorities or "system"} if section.tls else {}
    else:
        options = {"ssl": ssl.create_default_context(cafile=authorities)} if section.tls else {}
    engine = create_engine(address, connect_args=options)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(sql))]
    finally:
        engine.dispose()
