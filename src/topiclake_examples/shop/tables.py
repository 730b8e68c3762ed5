"""The tables of the shop, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from topiclake.errors import DatabaseError

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
            "python -m workbench up --with postgres, and the login that it exports",
            sqlstate=error.sqlstate,
        ) from None
