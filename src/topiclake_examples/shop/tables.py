"""The tables of the shop, in PostgreSQL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from topiclake.errors import ConfigError, DatabaseError

#: Each table after the tables that it refers to.
TABLES = ("customers", "products", "orders", "order_lines", "reviews")
#: STORAGE EXTERNAL: large values are not compressed, so 2,000 characters are enough for TOAST.
_STATEMENTS = """
CREATE TABLE IF NOT EXISTS customers (
    id bigint PRIMARY KEY, name text NOT NULL, email text, credit numeric(12, 2) NOT NULL DEFAULT 0,
    birthday date, tags text[], notes text, photo bytea, created_at timestamptz NOT NULL, login_at timestamp);
ALTER TABLE customers ALTER notes SET STORAGE EXTERNAL, ALTER photo SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS products (
    sku text PRIMARY KEY, name text NOT NULL, price numeric(10, 2) NOT NULL, description text,
    attributes jsonb, is_active boolean NOT NULL DEFAULT true, weight double precision, code uuid);
ALTER TABLE products ALTER description SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers (id) ON UPDATE CASCADE ON DELETE CASCADE,
    status text NOT NULL, ordered_at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS order_lines (
    order_id bigint REFERENCES orders (id) ON UPDATE CASCADE ON DELETE CASCADE, line smallint,
    sku text NOT NULL REFERENCES products (sku) ON UPDATE CASCADE ON DELETE CASCADE,
    quantity integer NOT NULL, price numeric(10, 2) NOT NULL, PRIMARY KEY (order_id, line));
ALTER TABLE order_lines REPLICA IDENTITY FULL;
CREATE TABLE IF NOT EXISTS reviews (
    id bigint PRIMARY KEY, sku text NOT NULL REFERENCES products (sku) ON UPDATE CASCADE ON DELETE CASCADE,
    stars smallint NOT NULL, review text);
ALTER TABLE reviews ALTER review SET STORAGE EXTERNAL;
"""

_ADDRESS, _USER = "WORKBENCH_POSTGRES", "WORKBENCH_POSTGRES_USER"
_REMEDY = "set the variables, on a laptop by python -m workbench up --with postgres"


def shop_conninfo(secrets: Callable[[str, str], str]) -> str:
    """Return the database and the login, from two environment variables and a secret.

    Args:
        secrets: The function that resolves secrets, usually `dbutils.secrets.get`.

    Raises:
        ConfigError: A variable is missing.
    """
    missing = tuple(name for name in (_ADDRESS, _USER) if not os.environ.get(name))
    if missing:
        raise ConfigError(
            f"the address of the shop's database is missing: {', '.join(missing)}",
            _REMEDY,
            variables=missing,
            reason="missing",
        )
    password = secrets("workbench", "postgres-password")
    return make_conninfo(os.environ[_ADDRESS], user=os.environ[_USER], password=password)


def create_shop(conninfo: str) -> None:
    """Create the tables of the shop that do not exist yet.

    Three tables have foreign keys. The table `order_lines` has `REPLICA IDENTITY FULL`, so its changes have
    the whole row before the change. In other tables, a change lacks the large values that it leaves alone.

    Args:
        conninfo: The database and the login, as psycopg accepts them.

    Raises:
        DatabaseError: The database cannot be reached, or refuses login or statement.
    """
    with shop_connection(conninfo) as connection:
        connection.execute(_STATEMENTS)


def add_customer_level(conninfo: str) -> None:
    """Add the column `level` to the customers, if they do not have it yet, and set it in each row.

    Args:
        conninfo: The database and the login, as psycopg accepts them.

    Raises:
        DatabaseError: The database cannot be reached, or refuses login or statement.
    """
    with shop_connection(conninfo) as connection:
        connection.execute("ALTER TABLE customers ADD COLUMN IF NOT EXISTS level integer")
        connection.execute("UPDATE customers SET level = id % 5")


def await_published(conninfo: str, *, slot: str = "shop", seconds: float = 300) -> None:
    """Wait until Debezium has published all changes that were committed before.

    A message goes through the log after them. Debezium confirms its position after Kafka has the records.

    Args:
        conninfo: The database and the login, as psycopg accepts them.
        slot: The replication slot of the connector.
        seconds: The longest wait.

    Raises:
        DatabaseError: The slot is missing, or has not reached the position in time.
    """
    with shop_connection(conninfo) as connection:
        message = "SELECT pg_logical_emit_message(true, 'shop', 'published')::text"
        (position,) = connection.execute(message).fetchone() or ("",)
    confirmed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    end = time.monotonic() + seconds
    while True:
        with shop_connection(conninfo) as connection:
            row = connection.execute(confirmed, (position, slot)).fetchone()
        if row == (True,):
            return
        if row is None or time.monotonic() > end:
            raise DatabaseError(
                f"Debezium has not published the changes up to {position} of the slot {slot}"
                + (", which does not exist" if row is None else f" in {seconds} seconds"),
                "python -m workbench status, which shows the connector's failure",
                slot=slot,
                position=position,
                reason="missing" if row is None else "timeout",
            )
        time.sleep(0.5)


def shop_rows(conninfo: str, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table of the shop, in the order of their keys.

    Args:
        conninfo: The database and the login, as psycopg accepts them.
        table: One of `TABLES`.

    Raises:
        DatabaseError: The database cannot be reached, or refuses login or statement.
    """
    with shop_connection(conninfo) as connection:
        query = sql.SQL("SELECT * FROM {} ORDER BY 1, 2").format(sql.Identifier(table))
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        return cursor.execute(query).fetchall()


@contextmanager
def shop_connection(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection whose statements are one transaction, committed if the block has no error.

    Raises:
        DatabaseError: The database cannot be reached, or refuses login or statement.
    """
    try:
        with psycopg.connect(conninfo, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        cause = " ".join(str(error).split())
        raise DatabaseError(
            f"the shop's database refuses the request: {cause}",
            _REMEDY,
            sqlstate=error.sqlstate,
        ) from None
