"""The shop's database and its load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from topiclake.errors import DatabaseError
from topiclake_examples.shop import INSERTS, KINDS, TABLES, change_shop, create_shop, shop_rows
from workbench.host.home import Home
from workbench.services.control import down, start_services
from workbench.services.postgres import Postgres

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = Home(tmp_path_factory.mktemp("shop"), PROJECT)
    start_services(home, [Postgres(home)])
    yield Postgres(home).conninfo(home.load().ports)
    down(home)


@pytest.fixture
def shop(server: str) -> str:
    with psycopg.connect(server) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    create_shop(server)
    return server


def rows(shop: str) -> dict[str, list[dict[str, Any]]]:
    return {table: shop_rows(shop, table) for table in TABLES}


def test_committed_inserts_are_counted_and_no_others(shop: str) -> None:
    changes = change_shop(shop, 500, keys=100, kinds=INSERTS)
    singular = {"customers": "customer", "order_lines": "line"}
    stored = {f"insert_{singular.get(table, table[:-1])}": len(kept) for table, kept in rows(shop).items()}
    assert changes["rolled_back"] > 0
    assert {kind: changes[kind] for kind in INSERTS} == stored
    assert min(stored.values()) > 0
    assert max(len(row["notes"] or "") for row in shop_rows(shop, "customers")) > 2_000


def test_one_session_makes_the_same_changes_again(shop: str) -> None:
    first = change_shop(shop, 800, keys=50, seed=7), rows(shop)
    with psycopg.connect(shop) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    create_shop(shop)
    assert (change_shop(shop, 800, keys=50, seed=7), rows(shop)) == first
    assert change_shop(shop, 800, keys=50, seed=8) != first[0]


@pytest.mark.thorough("a property of made data")
def test_each_kind_of_change_happens(shop: str) -> None:
    for kind in KINDS[len(INSERTS) :]:
        change_shop(shop, 200, keys=20, kinds=INSERTS)
        with psycopg.connect(shop) as connection:  # room for other keys
            connection.execute(
                "DELETE FROM customers WHERE id % 3 = 0; DELETE FROM products WHERE sku = 'P-0'"
            )
        assert change_shop(shop, 100, keys=20, kinds=[kind])[kind] > 0, kind
    assert "level" in shop_rows(shop, "customers")[0]


def test_sessions_that_collide_go_on(shop: str) -> None:
    changes = change_shop(shop, 2_000, sessions=8, keys=20, seed=2)
    assert sum(changes.values()) > 500
    create_shop(shop)


def test_a_wrong_password_is_an_error_of_the_database(shop: str) -> None:
    with pytest.raises(DatabaseError) as refused:
        change_shop(make_conninfo(shop, password="wr0ng"), 1)
    assert "password authentication failed" in str(refused.value)
    assert "wr0ng" not in str(refused.value)
