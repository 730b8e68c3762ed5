"""The notebooks of the shop, run where there is no workbench: its PostgreSQL database is the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import topiclake as tl
from tests.support.databricks import OF_A_DATABASE, STANDARD, name_services, run_notebooks
from tests.support.environment import succeeded
from tests.support.shop_topics import KEYS, plain_rows, view_rows
from topiclake.errors import ConfigError, DatabaseError
from topiclake_examples.shop import TABLES, await_published, shop_conninfo, shop_rows
from workbench.host.home import Home
from workbench.services.control import down, up
from workbench.services.postgres import Postgres
from workbench.services.service import Addresses

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[Home, Addresses]]:
    home = Home(tmp_path / "home", PROJECT)
    yield home, up(home, extras=["postgres"])
    down(home)


def rows(spark, settings, table):
    """Return the rows of a table of the pipeline, as `shop_rows` does."""
    found = view_rows(tl.create_view(spark, settings.for_topic(f"shop.public.{table}")))
    return sorted(found, key=lambda row: [row[name] for name in KEYS[table]])


@pytest.mark.thorough("the library has its tests of changes, and the database is no part of a pipeline")
@pytest.mark.slow("starts PostgreSQL and Kafka Connect, and runs three notebooks")
@pytest.mark.timeout(1200)
def test_the_tables_of_the_notebooks_are_those_of_the_database(
    services, project, spark, warm_jvm, connect_server, tmp_path, monkeypatch
) -> None:
    home, addresses = services
    variables = addresses.environment() | warm_jvm.environment()
    asked = [
        ("shop_change.py", {"env": "local", "statements": "200"}),
        ("cdc_orders.py", {"env": "local"}),
    ]
    assert {name for name, _ in asked} == OF_A_DATABASE
    for name, value in addresses.environment().items():
        monkeypatch.setenv(name, value)
    conninfo = Postgres(home).conninfo(home.load().ports)
    check_tables(run_notebooks(project, asked, variables), spark, project, conninfo)
    with pytest.raises(DatabaseError) as refused:
        await_published(conninfo, slot="other")
    assert refused.value.fields["reason"] == "missing"

    # The same changes into other tables, with standard access.
    name_services(project, addresses, tmp_path / "connected")
    for name in addresses.environment():
        monkeypatch.delenv(name)
    done = run_notebooks(project, asked[1:], {}, connect_server.url, STANDARD)
    check_tables(done, spark, project, conninfo)


def check_tables(done, spark, project, conninfo) -> None:
    """Compare what `cdc_orders` wrote into the tables of a project with the database."""
    result = json.loads(succeeded(done).splitlines()[-1])["cdc_orders.py"]
    shown = json.loads(result["exit"])
    assert (shown["shop"]["quarantined"], shown["shop_customers"]["quarantined"]) == ({}, {})
    assert shown["versions"] > 1
    assert result["displayed"] == 4
    settings = tl.load_settings("shop", {}, conf=project / "conf")
    history = tl.load_settings("shop_customers", {}, conf=project / "conf")
    for table in TABLES:
        expected = plain_rows(shop_rows(conninfo, table))
        assert rows(spark, settings, table) == expected, table
    versions = tl.create_view(spark, history).where("__END_AT IS NULL").drop("__START_AT", "__END_AT")
    current = sorted(view_rows(versions), key=lambda row: row["id"])
    assert current == plain_rows(shop_rows(conninfo, "customers"))
    assert "level" in current[0]


def test_a_missing_database_is_named_with_the_command_that_starts_one(monkeypatch) -> None:
    monkeypatch.delenv("WORKBENCH_POSTGRES", raising=False)
    monkeypatch.setenv("WORKBENCH_POSTGRES_USER", "shop")
    with pytest.raises(ConfigError) as refused:
        shop_conninfo(lambda scope, key: "")
    assert refused.value.fields["variables"] == ("WORKBENCH_POSTGRES",)
    assert "up --with postgres" in refused.value.remedy
