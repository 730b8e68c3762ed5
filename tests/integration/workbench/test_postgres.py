"""`up --with postgres`: PostgreSQL alone, then its changes as topics in three forms."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import get_args

import psycopg
import pytest
import requests
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.shop_topics import UNAVAILABLE, Change, plain_rows, read_changes, rows_after
from tests.support.waiting import wait_until
from topiclake.errors import PlatformError
from topiclake_examples.shop import INSERTS, KINDS, TABLES, change_shop, create_shop, shop_rows
from workbench.host import processes
from workbench.host.home import Home
from workbench.services import control
from workbench.services.control import down, start_services, status, up
from workbench.services.kafka_connect import CONNECTOR, PARTITIONS, Form, KafkaConnect, connector_settings
from workbench.services.postgres import Postgres
from workbench.services.service import Addresses

PROJECT = Path(__file__).parents[3]
FORMS: tuple[Form, ...] = get_args(Form)
LATEST = OffsetSpec.latest()
LARGE = "n" * 3_000
#: One change of each kind; the first group is there when the connectors start.
BEFORE = [
    f"INSERT INTO customers VALUES (-1, 'Ada', NULL, 1.5, NULL, NULL, '{LARGE}', NULL, now(), NULL)",
    f"INSERT INTO customers VALUES (-2, 'Bob', NULL, 0, NULL, NULL, '{LARGE}', NULL, now(), NULL)",
    "INSERT INTO products VALUES ('S', 'Tea', 2.5, NULL, NULL, true, NULL, NULL)",
    f"INSERT INTO reviews VALUES (-1, 'S', 5, '{LARGE}')",
]
AFTER = [
    "UPDATE customers SET credit = -0.01 WHERE id = -1",
    "DELETE FROM customers WHERE id = -2",
    "INSERT INTO orders VALUES (-1, -1, 'new', now())",
    "INSERT INTO order_lines VALUES (-1, 1, 'S', 2, 2.5)",
    "UPDATE order_lines SET quantity = 3 WHERE order_id = -1",
    "UPDATE orders SET id = -10 WHERE id = -1",
    "UPDATE reviews SET id = -10 WHERE id = -1",
    "TRUNCATE order_lines",
    "INSERT INTO order_lines VALUES (-10, 2, 'S', 4, 2.5)",
    "ALTER TABLE customers ADD COLUMN level integer",
    "UPDATE customers SET level = 3 WHERE id = -1",
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "wörk bench", PROJECT)
    yield home
    down(home)
    assert processes.marked(home) == []


@pytest.mark.thorough("crashes of services are no part of a pipeline")
def test_postgresql_keeps_its_rows_over_a_crash_and_its_password_to_itself(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Postgres(home)
    start_services(home, [server])
    execute(home, "CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept VALUES (1)")
    ports, first = home.load().ports, pid(home, server)
    start_services(home, [server])
    assert pid(home, server) == first
    assert stat.S_IMODE((server.folder / "password").stat().st_mode) == 0o600
    commands = [" ".join(one.cmdline()) for one in processes.marked(home)]
    assert [command for command in commands if server.password() in command] == []

    os.kill(first, signal.SIGKILL)
    # PostgreSQL does not start while the killed process is a zombie.
    os.waitpid(first, 0)
    wait_until(lambda: status(home, [server])[0].state == "crashed")
    with socket.socket() as other:
        wait_until(lambda: occupies(other, ports["postgres"]), 30)
        start_services(home, [server])
    assert home.load().ports["postgres"] != ports["postgres"]
    assert execute(home, "SELECT id FROM kept") == [(1,)]

    # An open connection does not delay the stop.
    connection = psycopg.connect(server.conninfo(home.load().ports))
    assert down(home) == ["postgres"]
    connection.close()
    assert "database system is shut down" in home.log("postgres").read_text("utf-8")
    server.folder.joinpath("password").write_text("another")
    monkeypatch.setattr(control, "START_SECONDS", 5)
    with pytest.raises(PlatformError) as refused:
        start_services(home, [server])
    assert "password authentication failed" in str(refused.value)
    assert processes.marked(home) == []


def test_a_start_that_was_interrupted_leaves_no_half_database(home: Home) -> None:
    server = Postgres(home)
    home.prepare()
    (server.folder / "data.new" / "base").mkdir(parents=True)
    start_services(home, [server])
    assert execute(home, "SELECT pubname FROM pg_publication") == [("dbz_publication",)]


@pytest.mark.thorough("the source of change data is no part of a pipeline")
@pytest.mark.slow("starts the broker, the registry, PostgreSQL, and Kafka Connect twice")
@pytest.mark.timeout(1800)
def test_changes_are_records_in_each_form_and_a_killed_connect_loses_none(home: Home) -> None:
    addresses = up(home, extras=["postgres"])
    ports = home.load().ports
    pids = {one.name: one.pid for one in status(home)}
    assert up(home) == addresses
    assert {one.name: one.pid for one in status(home)} == pids
    conninfo, connect = Postgres(home).conninfo(ports), KafkaConnect(home)
    create_shop(conninfo)
    execute(home, *BEFORE)
    change_shop(conninfo, 150, kinds=INSERTS, keys=50)
    for form in FORMS:
        assert connect.register(ports, form, connector_settings(form, form)) is None
    snapshot = {table: len(shop_rows(conninfo, table)) for table in TABLES}
    for form in FORMS:
        wait_until(partial(has_lengths, addresses, form, snapshot))
    execute(home, *AFTER)
    for form in FORMS:
        wait_until(partial(has_stored_a_change, connect.address(ports), form))
    random_kinds = set(KINDS) - {"move_review", "add_customer_level"}
    with ThreadPoolExecutor(1) as threads:
        # Before the load, which may be faster than this count.
        last = lengths(addresses, "avro")
        load = threads.submit(change_shop, conninfo, 1_500, sessions=4, keys=50, kinds=random_kinds, seed=1)
        wait_until(lambda: load.done() or lengths(addresses, "avro") != last)
        killed = pids["kafka-connect"]
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        load.result()
    wait_until(lambda: status(home, [connect])[0].state == "crashed")
    assert up(home) == addresses
    for prefix, form in ((CONNECTOR, "avro"), *zip(FORMS, FORMS, strict=True)):
        check_envelopes(
            wait_until(partial(all_changes, addresses, conninfo, prefix, form)),
            has_snapshot=prefix != CONNECTOR,
        )
        transactions = read_changes(addresses, [f"{prefix}.transaction"], form)[f"{prefix}.transaction"]
        ends = [
            change.value["event_count"]
            for change in transactions
            if change.value and change.value["status"] == "END"
        ]
        assert ends
        assert max(ends) > 1

    # A connector whose position is lost, for example.
    wait_until(partial(has_dropped_slot, home, CONNECTOR))
    wait_until(lambda: "no longer available on the server" in status(home, [connect])[0].detail)
    assert down(home) == ["kafka", "kafka-connect", "postgres", "schema-registry"]


def check_envelopes(changes: dict[str, list[Change]], *, has_snapshot: bool) -> None:
    every = [change for table in TABLES for change in changes[table]]
    values = [change.value for change in every if change.value]
    assert {value["op"] for value in values} == {"c", "u", "d", "t"} | ({"r"} if has_snapshot else set())
    for value in values:
        assert {"before", "after", "source", "op", "ts_ms", "transaction"} <= set(value)
        assert (value["transaction"] is None) == (value["op"] == "r")
        assert {"lsn", "txId", "ts_ms", "snapshot", "schema", "table", "sequence"} <= set(value["source"])
    assert {table: without_tombstone(changes[table]) for table in TABLES} == {table: [] for table in TABLES}
    truncated = [change.key for change in every if change.value and change.value["op"] == "t"]
    assert set(map(str, truncated)) == {"None"}
    # The key changed, and the large text did not.
    (moved,) = {one.value["after"]["review"] for one in of_key(changes["reviews"], {"id": -10}, "c")}
    assert moved == UNAVAILABLE
    (old,) = {str(one.headers) for one in of_key(changes["reviews"], {"id": -10}, "c")}
    assert old == str({"__debezium.oldkey": {"id": -1}})
    # Columns of the row before a deletion, which PostgreSQL does not log, have invented values.
    (deleted,) = {one.value["before"]["name"] for one in of_key(changes["customers"], {"id": -2}, "d")}
    assert deleted == ""
    (full,) = {one.value["before"]["quantity"] for one in of_key(changes["order_lines"], AFTER_KEY, "u")}
    assert full == 2


AFTER_KEY = {"order_id": -1, "line": 1}


def of_key(changes: list[Change], key: dict[str, int], operation: str) -> list[Change]:
    return [one for one in changes if one.key == key and one.value and one.value["op"] == operation]


def all_changes(
    addresses: Addresses, conninfo: str, prefix: str, form: Form
) -> dict[str, list[Change]] | None:
    """Return the records of each table, if they have all changes of the database, whose rows are at rest."""
    topics = read_changes(addresses, [f"{prefix}.public.{table}" for table in TABLES], form)
    changes = dict(zip(TABLES, topics.values(), strict=True))
    for table in TABLES:
        expected = plain_rows(shop_rows(conninfo, table))
        if fill(rows_after(changes[table], table), expected) != expected or without_tombstone(changes[table]):
            return None
    return changes


def without_tombstone(changes: list[Change]) -> list[Change]:
    """Return the deletions that no tombstone follows.

    A killed worker may have sent the deletion without its tombstone. The next one sends both again, so the
    last record of a deletion counts.
    """
    last: dict[tuple[int, str], tuple[Change, Change | None]] = {}
    for one, following in zip_longest(changes, changes[1:]):
        if one.value and one.value["op"] == "d":
            last[one.value["source"]["lsn"], str(one.key)] = one, following
    return [
        one
        for one, following in last.values()
        if following is None or (following.key, following.value) != (one.key, None)
    ]


def fill(rows: list[dict[str, object]], expected: list[dict[str, object]]) -> list[dict[str, object]]:
    """Add the columns that a row's last change did not have yet."""
    return [{**dict.fromkeys(expected[0] if expected else ()), **row} for row in rows]


def lengths(addresses: Addresses, prefix: str) -> dict[str, int]:
    """Return the number of records of each table's topic."""
    client = AdminClient({"bootstrap.servers": addresses.kafka_bootstrap_servers})
    counts = {}
    for table in TABLES:
        topic = f"{prefix}.public.{table}"
        wanted = {TopicPartition(topic, partition): LATEST for partition in range(PARTITIONS)}
        try:
            counts[table] = sum(end.result().offset for end in client.list_offsets(wanted).values())
        except KafkaException:  # the topic does not exist yet
            counts[table] = 0
    return counts


def has_lengths(addresses: Addresses, prefix: str, expected: dict[str, int]) -> bool:
    return lengths(addresses, prefix) == expected


def has_stored_a_change(connect: str, connector: str) -> bool:
    """Return whether a killed connector would continue after its snapshot, and not make a new one.

    The position of the last row may say that the snapshot has not ended.
    """
    answer = requests.get(f"{connect}/connectors/{connector}/offsets", timeout=60).json()
    return [part["offset"].get("snapshot") for part in answer["offsets"]] == [None]


def has_dropped_slot(home: Home, name: str) -> bool:
    """Drop a slot, if its connector does not hold it at this moment."""
    slot = f"FROM pg_replication_slots WHERE slot_name = '{name}'"
    try:
        execute(
            home,
            f"SELECT pg_terminate_backend(active_pid) {slot}",
            f"SELECT pg_drop_replication_slot(slot_name) {slot}",
        )
    except psycopg.errors.ObjectInUse:
        return False
    return True


def execute(home: Home, *statements: str) -> list[tuple[object, ...]]:
    """Execute each statement in its own transaction; return the rows of the last."""
    with psycopg.connect(Postgres(home).conninfo(home.load().ports), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def pid(home: Home, server: Postgres) -> int:
    (service,) = status(home, [server])
    assert service.pid is not None, service
    return service.pid


def occupies(other: socket.socket, port: int) -> bool:
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        other.bind(("127.0.0.1", port))
    except OSError:
        return False
    other.listen()
    return True
