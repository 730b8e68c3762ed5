"""Kill the ingests of a database's changes again and again, and compare their tables with the database.

A separate broker, registry, PostgreSQL and Debezium. Ten transactions at once change the five tables of the
shop: keys, large values, truncates and new columns among the changes. Three ingests run in one process.

The first one has the newest rows of all tables (SCD type 1). The second one has all versions of the customers
(SCD type 2). The third one has the newest rows of orders and their lines. The second and the third one read
topics in which the changes of a key are in all partitions.

The process group gets SIGKILL at random moments, and within a MERGE. OPTIMIZE, an UPDATE and a replay write
into the tables at the same time. At the end, the rows must be those of the database. The versions must be
those that plain Python computes from the topics. The audit must find nothing. Exits with 1 and the first
difference.

    python -m bench.torture_changes --statements 480000 --kills 30 --seed 1
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import topiclake as tl
from bench.rounds import PROJECT, console, own_services, secret
from bench.torture import start_spark
from tests.programs.changes_run import PATIENCE_SECONDS, ChangeIngests
from tests.support.shop_topics import KEYS, Change, plain_rows, read_changes, versions_after, view_rows
from tests.support.waiting import wait_until
from topiclake.config.settings import Settings
from topiclake.config.storage import StorageSettings
from topiclake.delta import table as delta
from topiclake.errors import DatabaseError
from topiclake_examples.shop import (
    INSERTS,
    KINDS,
    TABLES,
    await_published,
    change_shop,
    create_shop,
    shop_conninfo,
    shop_rows,
)
from workbench.host.home import Home
from workbench.host.processes import variables_set
from workbench.services.kafka_connect import CONNECTOR, KafkaConnect, connector_settings

#: The connector that sends the records of a key to all partitions.
SHUFFLED = "shuffled"
_ANY_PARTITION = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
#: Tables without large values: an update that arrives too early would keep one of an older update.
SHUFFLED_ROWS = ("orders", "order_lines")
SESSIONS = 10
SHOP_KEYS = 500
#: The longest time from the start of all queries to a kill.
MOST_SECONDS = 60.0
#: The first kill and each third one after it are within a MERGE.
MERGE_KILLS = 3


def ingests(folder: Path, batch: int) -> dict[str, Settings]:
    """Return the configurations of the three ingests, by name."""
    storage = StorageSettings(source=folder.as_uri(), mount_point="/mnt/datalake")
    shuffled = rf"{SHUFFLED}\.public\.({'|'.join(SHUFFLED_ROWS)})"
    changed: dict[str, tuple[str, dict[str, Any]]] = {
        "shop": ("shop", {}),
        "shop_customers": ("shop_customers", {"topic": f"{SHUFFLED}.public.customers"}),
        SHUFFLED: (
            "shop",
            {"topic_pattern": shuffled, "checkpoint_path": f"/mnt/datalake/checkpoints/{SHUFFLED}"},
        ),
    }
    found = {}
    for name, (pipeline, update) in changed.items():
        settings = tl.load_settings(pipeline, {"env": "local"}, conf=PROJECT / "conf")
        batches = {"max_offsets_per_trigger": batch}
        changed_pipeline = settings.pipeline.model_copy(update=update | batches)
        found[name] = settings.model_copy(
            update={"name": name, "storage": storage, "pipeline": changed_pipeline}
        )
    return found


def topics(settings: Mapping[str, Settings]) -> dict[str, Settings]:
    """Return the configuration of each topic."""
    found = {f"{CONNECTOR}.public.{table}": settings["shop"] for table in TABLES}
    found |= {f"{SHUFFLED}.public.{table}": settings[SHUFFLED] for table in SHUFFLED_ROWS}
    of_topics = {topic: each.for_topic(topic) for topic, each in found.items()}
    customers = settings["shop_customers"]
    return of_topics | {customers.pipeline.topic: customers}


def start_shuffled(home: Home) -> None:
    """Register the second connector."""
    connector = connector_settings(SHUFFLED) | {"producer.override.partitioner.class": _ANY_PARTITION}
    problem = KafkaConnect(home).register(home.load().ports, SHUFFLED, connector)
    if problem is not None:
        raise click.ClickException(f"Kafka Connect refuses the connector {SHUFFLED}: {problem}")


def await_connectors(conninfo: str) -> None:
    """Wait until both connectors stream: rows of a snapshot would have its position, and not their own."""

    def have_slots() -> bool:
        try:
            await_all_published(conninfo)
        except DatabaseError as error:
            if error.fields["reason"] != "missing":
                raise
            return False
        return True

    # A connector creates its slot a moment after its registration.
    wait_until(have_slots, PATIENCE_SECONDS)


def await_all_published(conninfo: str) -> None:
    """Wait until both connectors have published what was committed before."""
    for slot in (CONNECTOR, SHUFFLED):
        await_published(conninfo, slot=slot)


def torture(
    spark: SparkSession,
    settings: Mapping[str, Settings],
    process: ChangeIngests,
    conninfo: str,
    statements: int,
    kills: int,
    chance: random.Random,
) -> None:
    """Change the database, kill, and write into the tables from outside."""
    # A change by `move_review` may lack a large value for good (docs/changes.md).
    kinds = set(KINDS) - {"move_review"}
    with ThreadPoolExecutor(1) as threads:
        for number in range(1, kills + 1):
            load = threads.submit(
                change_shop,
                conninfo,
                statements // kills,
                sessions=SESSIONS,
                keys=SHOP_KEYS,
                kinds=kinds,
                seed=chance.randrange(2**32),
            )
            if number % MERGE_KILLS == 1:
                running, moment = process.start(share=chance.random()), "within a MERGE"
                write_from_outside(spark, settings, chance)
            else:
                running, seconds = process.start(), chance.uniform(0, MOST_SECONDS)
                moment = f"{seconds:.1f} s after the start"
                write_from_outside(spark, settings, chance)
                kill_after(running, seconds)
            ended = running.wait(PATIENCE_SECONDS)
            if ended != -signal.SIGKILL:
                raise click.ClickException(f"the ingests ended with {ended}: {process.tail()}")
            changed = load.result()
            console.print(f"  kill {number} of {kills}, {moment}; {changed.total():,} changes meanwhile")


def kill_after(running: Popen[bytes], seconds: float) -> None:
    """Kill the process group."""
    time.sleep(seconds)
    os.killpg(running.pid, signal.SIGKILL)


def write_from_outside(spark: SparkSession, settings: Mapping[str, Settings], chance: random.Random) -> None:
    """Rewrite files of tables with the same rows, and replay the quarantine of the customers."""
    tables = [tl.table_path(each) for each in topics(settings).values()]
    existing = [path for path in tables if delta.is_table(spark, path)]
    if existing:
        with conflicts_allowed():
            spark.sql(f"OPTIMIZE delta.`{chance.choice(existing)}`")
        with conflicts_allowed():
            some = f"pmod(hash(_cdc), 10) = {chance.randrange(10)}"
            spark.sql(f"UPDATE delta.`{chance.choice(existing)}` SET _cdc = _cdc WHERE {some}")
    tl.replay_quarantine(spark, settings["shop_customers"])


@contextmanager
def conflicts_allowed() -> Iterator[None]:
    """Ignore that an ingest has committed first."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if not delta.is_conflict(error):
            raise


def differences(
    spark: SparkSession,
    settings: Mapping[str, Settings],
    changes: Mapping[str, list[Change]],
    conninfo: str,
) -> Iterable[str]:
    """Yield the first difference of each table, and what the audit finds."""
    for topic, of_topic in topics(settings).items():
        table = topic.rpartition(".")[2]
        found = view_rows(tl.create_view(spark, of_topic))
        if topic == f"{SHUFFLED}.public.customers":
            order = (*KEYS[table], "__START_AT")
            expected = versions_after(changes[f"{CONNECTOR}.public.{table}"], table)
        else:
            order = KEYS[table]
            expected = plain_rows(shop_rows(conninfo, table))
        found.sort(key=lambda row, order=order: [row[name] for name in order])  # type: ignore[misc]
        yield from first_difference(topic, found, expected)
        waiting = tl.replay_quarantine(spark, of_topic).waiting
        if waiting:
            yield f"{topic}: {waiting} wait in quarantine"
    for name, each in settings.items():
        yield from (f"audit of {name}: {finding}" for finding in tl.audit_ingest(spark, each).findings)


def first_difference(
    topic: str, found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> Iterable[str]:
    """Yield the first row that differs, and the numbers of rows if they do."""
    console.print(f"  {topic}: {len(found):,} rows, {len(expected):,} expected")
    if len(found) != len(expected):
        yield f"{topic}: {len(found):,} rows, and {len(expected):,} are expected"
    for row, other in zip(found, expected, strict=False):
        columns = {name for name in {*row, *other} if row.get(name) != other.get(name)}
        if columns:
            yield f"{topic}: {sorted(columns)} of {row} should be those of {other}"
            return


@click.command()
@click.option("--statements", default=480_000, show_default=True)
@click.option("--kills", default=30, show_default=True, help=f"The first of {MERGE_KILLS} is within a MERGE.")
@click.option("--seed", default=1, show_default=True, help="Same seed, same statements and moments.")
def main(statements: int, kills: int, seed: int) -> None:
    """Run it on separate services."""
    started = time.monotonic()
    with (
        own_services("torture-changes", ["postgres"]) as (scratch, addresses),
        variables_set(addresses.environment()),
    ):
        conninfo = shop_conninfo(secret)
        start_shuffled(Home(scratch / "home", PROJECT))
        create_shop(conninfo)
        await_connectors(conninfo)
        # Each table has a topic before the first start.
        change_shop(conninfo, SHOP_KEYS, kinds=INSERTS, keys=SHOP_KEYS, seed=seed)
        await_all_published(conninfo)
        (folder := scratch / "lake").mkdir()
        spark, settings = start_spark(scratch), ingests(folder, batch=max(500, statements // 20))
        process = ChangeIngests(folder, tuple(settings.values()))
        torture(spark, settings, process, conninfo, statements, kills, random.Random(seed))
        await_all_published(conninfo)
        process.drain()
        tl.replay_quarantine(spark, settings["shop_customers"])
        changes = read_changes(addresses, [f"{CONNECTOR}.public.{table}" for table in TABLES], "avro")
        faults = list(differences(spark, settings, changes, conninfo))
        spark.stop()
    if faults:
        raise click.ClickException("\n".join(faults[:10]))
    arrived = sum(
        change.value["op"] != "r" for of_topic in changes.values() for change in of_topic if change.value
    )
    console.print(
        f"{arrived:,} changes, {kills} kills: rows and versions are those of the database "
        f"({time.monotonic() - started:.0f} s)"
    )


if __name__ == "__main__":
    main()
