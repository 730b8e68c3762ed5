"""Kill a driver that keeps counts in a database, again and again, and look at the table at the end.

Each run starts separate servers. A driver counts hits by key, a file each micro-batch. Its process group gets
SIGKILL at a random moment after a batch began. The last driver counts the rest. Then the table has to equal
what plain Python computes over the same files. The quarantine has to hold each refused row of each batch
once. Exits with 1 and the first differences.

    python -m bench.jdbc_kills --kills 20 --seed 1
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.programs.jdbc_run import Driver, expected, found, settings_for, write_hits
from tests.services.databases import KINDS, Server, database

#: The servers without an option. The third kind differs from PostgreSQL only in TLS.
DEFAULT_KINDS = ("mariadb", "postgresql")
#: Number of files, and of batches, for each kill: a driver gets to the end of a few of them.
FILES_PER_KILL = 8


@click.command()
@click.option("--kills", default=20, show_default=True, help="On each database.")
@click.option("--seed", default=1, show_default=True, help="Same seed, same hits and moments.")
@click.option("--seconds", default=3.0, show_default=True, help="The latest kill, after a batch began.")
@click.option("--only", type=click.Choice(sorted(KINDS)), help="One database, not MariaDB and PostgreSQL.")
def main(kills: int, seed: int, seconds: float, only: str | None) -> None:
    """Kill drivers on MariaDB and on PostgreSQL."""
    same = True
    for kind in [only] if only else DEFAULT_KINDS:
        with database(kind) as server, tempfile.TemporaryDirectory(prefix="topiclake_jdbc_") as folder:
            same &= run(server, Path(folder), kills, random.Random(seed), seconds)
    sys.exit(not same)


def run(server: Server, folder: Path, kills: int, chance: random.Random, seconds: float) -> bool:
    """Kill, continue, and compare; return whether the tables are as expected."""
    settings_for(folder, server)
    write_hits(folder, kills * FILES_PER_KILL, seed=chance.randrange(1000))
    driver, done, started = Driver(folder), 0, time.monotonic()
    for number in range(kills):
        done += driver.kill_at_random(chance, seconds)
        after = time.monotonic() - started
        print(f"{server.kind}: run {number + 1}, {done} killed, {after:.0f} s", flush=True)
    driver.drain()
    wanted, actual = expected(folder), found(server)
    (batches,) = server.query("SELECT batch_id FROM topiclake_batches")
    print(
        f"{server.kind}: {done} kills, {batches[0] + 1} batches, {len(actual[0])} rows of {len(wanted[0])}, "
        f"{len(actual[1])} refused of {len(wanted[1])}: {'equal' if actual == wanted else 'DIFFERENT'}",
        flush=True,
    )
    if actual != wanted:
        print(
            "missing or extra:",
            sorted(wanted[0] ^ actual[0])[:10],
            wanted[1][:10],
            actual[1][:10],
        )
    return actual == wanted


if __name__ == "__main__":
    main()
