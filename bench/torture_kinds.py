"""Kill ingests of eight kinds again and again, while others change what surrounds them.

The kinds are plain Avro whose versions come and go in the registry, decoded keys, and JSON Schema. Others are
two topics and twenty topics of which one has no subject for a while, and a table that others alter. The last
two are a configuration that changes, and a checkpoint that is lost.

Each record's place and value follows from its number, so the tables are compared with an oracle after each
kill. No record of a done batch is missing, and none exists twice or has another value. The audit must say the
same. Exits with 1 and the first records that are wrong.

    python -m bench.torture_kinds --kills 8 --seed 1
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import requests
from confluent_kafka import Producer
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from bench.rounds import console, own_services
from bench.torture import BATCHES, start_spark
from tests.programs.crash_run import Ingest
from tests.programs.crash_traffic import settings_for
from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.formats.avro import decoding as avro_decoding
from topiclake.ingest.audit import audit
from topiclake.ingest.quarantine import replay_claims
from topiclake.kafka import admin as kafka_admin
from topiclake.kafka import client as kafka_client
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from topiclake.streaming import checkpoint

PARTITIONS = 2
#: Records between two kills, in all topics of a kind together.
RECORDS = 800
#: Topics of the kind with the most.
TOPICS = 20
#: At which a batch of each kind is cut; every batch has records for the quarantine.
STEPS = ("before table", "after table", "before quarantine", "after quarantine", "before Spark's commit file")

KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
#: The additional field of the second version of plain Avro.
UNIT = {"name": "unit", "type": ["null", "string"], "default": None}

#: Where a record is: the reason of its quarantine, or `ok` and its columns.
Location = tuple[str, tuple[tuple[str, Any], ...]]
Columns = Mapping[str, Any]


def row(**columns: Any) -> Location:  # noqa: ANN401
    """Return the place of a record that is a row."""
    return "ok", tuple(sorted(columns.items()))


def bad(reason: str) -> Location:
    """Return the place of a record that is in quarantine."""
    return reason, ()


@dataclass
class Kind:
    """Numbers as framed Avro; the other kinds differ in some of it.

    Attributes:
        settings: The ingest's.
        folder: Where its tables are.
        sent: Number of sent records; record N is offset N // 2 of partition N % 2.
    """

    settings: Settings
    folder: Path
    sent: int = 0
    schema_ids: dict[str, int] = field(default_factory=dict)

    FIELDS = ({"name": "number", "type": "long"}, {"name": "text", "type": "string"})

    @property
    def topics(self) -> Sequence[str]:
        """The topics that are read."""
        return self.settings.pipeline.topics

    @property
    def registry(self) -> SchemaRegistry:
        """The registry."""
        return SchemaRegistry.from_settings(self.settings.schema_registry)

    def create(self) -> None:
        """Create topics and subjects."""
        for topic in self.topics:
            kafka_admin.ensure_topic(self.settings.kafka, topic, PARTITIONS)
            self.register(topic)

    def register(self, topic: str) -> None:
        """Register the schema of a topic."""
        self.schema_ids[topic] = self.registry.register(f"{topic}-value", self.schema())

    def schema(self, *more: Columns) -> str:
        """Return a schema with further fields."""
        return json.dumps({"type": "record", "name": "Reading", "fields": [*self.FIELDS, *more]})

    def send(self, count: int) -> None:
        """Send the next records to each topic."""
        producer = Producer(kafka_client.client_settings(self.settings.kafka) | {"enable.idempotence": True})
        for number in range(self.sent, self.sent + count):
            for topic in self.topics:
                value, key = self.value(topic, number), self.key(number)
                producer.produce(topic, value=value, key=key, partition=number % PARTITIONS)
        assert producer.flush(120) == 0
        self.sent += count

    def key(self, number: int) -> bytes | None:
        """Return the key of a record."""
        return None

    def payload(self, number: int) -> bytes:
        """Return a value without what names its schema."""
        text = f"n{number}".encode()
        return avro_decoding.zigzag(number) + avro_decoding.zigzag(len(text)) + text

    def value(self, topic: str, number: int) -> bytes | None:
        """Return the value of a record."""
        framed = frame(self.schema_ids[topic], self.payload(number))
        return {7: framed[:-1], 11: frame(2**31 - 1, framed[5:]), 13: None}.get(number % 20, framed)

    def locations(self, number: int) -> Sequence[Location]:
        """Return where a record may be, in one of them."""
        reasons = {7: "undecodable", 11: "unknown_schema_id", 13: "tombstone"}
        if reason := reasons.get(number % 20):
            return [bad(reason)]
        return [self.row(number)]

    def row(self, number: int) -> Location:
        """Return the row of a record."""
        return row(number=number, text=f"n{number}")

    def columns(self) -> Sequence[str]:
        """Return the columns that are compared."""
        return [column["name"] for column in self.FIELDS]

    def meddle(self, spark: SparkSession, chance: random.Random) -> None:
        """Change what surrounds the ingest, as others do."""

    def before_end(self) -> None:
        """Put back what the last records need."""


class PlainAvro(Kind):
    """Values that name no schema; one of their two versions is deleted and registered again."""

    def register(self, topic: str) -> None:
        """Register both versions."""
        self.registry.register(f"{topic}-value", self.schema())
        self.registry.register(f"{topic}-value", self.schema(UNIT))

    def value(self, topic: str, number: int) -> bytes | None:
        """Return a value of one of the versions, or one that is of none."""
        # The second branch of the union, and a text of one byte.
        unit = avro_decoding.zigzag(1) + avro_decoding.zigzag(1) + b"m" if number % 3 == 0 else b""
        framed = self.payload(number) + unit
        return {7: framed[:-1], 13: None}.get(number % 20, framed)

    def locations(self, number: int) -> Sequence[Location]:
        """Return where it may be: a value of the version that comes and goes is a row or undecodable."""
        if number % 20 == 13:
            return [bad("tombstone")]
        if number % 20 == 7:
            # Without its last byte a value of the second version is a value of neither.
            return [bad("undecodable")]
        unit = row(number=number, text=f"n{number}", unit="m" if number % 3 == 0 else None)
        return [unit, bad("undecodable")] if number % 3 == 0 else [unit]

    def columns(self) -> Sequence[str]:
        """Return the columns of both versions."""
        return [*super().columns(), "unit"]

    def meddle(self, spark: SparkSession, chance: random.Random) -> None:
        """Delete the second version, or register it again."""
        subject = f"{self.topics[0]}-value"
        if len(self.registry.versions(subject)) == 2 and chance.random() < 0.5:
            latest = self.registry.versions(subject)[-1].version
            url = f"{self.settings.schema_registry.url}/subjects/{subject}/versions/{latest}"
            requests.delete(url, timeout=30).raise_for_status()
        else:
            self.before_end()

    def before_end(self) -> None:
        """Register the second version again."""
        self.registry.register(f"{self.topics[0]}-value", self.schema(UNIT))


class Keys(Kind):
    """Decoded keys, of which some are bad."""

    def register(self, topic: str) -> None:
        """Register the schemas of values and keys."""
        super().register(topic)
        self.schema_ids["key"] = self.registry.register(f"{topic}-key", json.dumps(KEY))

    def key(self, number: int) -> bytes | None:
        """Return a key; every tenth is bad or null."""
        framed = frame(self.schema_ids["key"], avro_decoding.zigzag(number))
        return {5: framed[:3], 8: None}.get(number % 10, framed)

    def locations(self, number: int) -> Sequence[Location]:
        """Return where it may be; a bad key is named where the value is right."""
        (location,) = super().locations(number)
        return [bad("too_short")] if number % 10 == 5 and location[0] == "ok" else [location]

    def row(self, number: int) -> Location:
        """Return the row with its key."""
        return row(number=number, text=f"n{number}", _key=None if number % 10 == 8 else (number,))

    def columns(self) -> Sequence[str]:
        """Return the columns, the key's too."""
        return [*super().columns(), "_key"]


class SeveralTopics(Kind):
    """Topics with a table each; the last one gets its subject after some kills."""

    kills = 0

    def create(self) -> None:
        """Create the topics, and the subjects of all but the last."""
        *others, last = self.topics
        for topic in self.topics:
            kafka_admin.ensure_topic(self.settings.kafka, topic, PARTITIONS)
        for topic in others:
            self.register(topic)
        # The last topic's values name the same schema: an id is of a schema, not of a subject.
        self.schema_ids[last] = self.schema_ids[others[0]]

    def meddle(self, spark: SparkSession, chance: random.Random) -> None:
        """Register the last subject, late."""
        self.kills += 1
        if self.kills == 4:
            self.before_end()

    def before_end(self) -> None:
        """Register the last subject."""
        self.register(self.topics[-1])


class JsonSchema(Kind):
    """JSON with a schema of the registry."""

    def register(self, topic: str) -> None:
        """Register a JSON Schema."""
        properties = {"number": {"type": "integer"}, "text": {"type": "string"}}
        schema = {"type": "object", "title": "Reading", "properties": properties, "required": ["number"]}
        number = self.registry.register(f"{topic}-value", json.dumps(schema), schema_type="JSON")
        self.schema_ids[topic] = number

    def payload(self, number: int) -> bytes:
        """Return JSON."""
        return json.dumps({"number": number, "text": f"n{number}"}).encode()


class AlteredTable(Kind):
    """A table that others alter: columns, files, constraints."""

    def locations(self, number: int) -> Sequence[Location]:
        """Return where it may be: a constraint that comes and goes refuses every tenth record."""
        locations = super().locations(number)
        refused = number % 10 == 4 and locations[0][0] == "ok"
        return [*locations, bad("refused_by_table")] if refused else locations

    def meddle(self, spark: SparkSession, chance: random.Random) -> None:
        """Alter the table."""
        path = str(self.folder / "table")
        if not delta.is_table(spark, path):
            return
        table = f"delta.`{path}`"
        has_constraint = "delta.constraints.fourth" in delta.properties(spark, path)
        change = chance.choice(["column", "files", "constraint"])
        if change == "column":
            spark.sql(f"ALTER TABLE {table} ADD COLUMNS (more{chance.randrange(10**9)} STRING)")
        elif change == "files":
            DeltaTable.forPath(spark, path).optimize().executeCompaction()
        elif has_constraint:
            spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT fourth")
        else:
            # Delta refuses a constraint that rows of the table break.
            new = f"number % 10 <> 4 OR number < {self.sent}"
            spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT fourth CHECK ({new})")


class ChangedConfiguration(Kind):
    """A pipeline whose name, batches and columns change."""

    def meddle(self, spark: SparkSession, chance: random.Random) -> None:
        """Change the configuration; columns only where no batch was interrupted, as the ingest asks for."""
        given: dict[str, object] = {
            "max_offsets_per_trigger": chance.choice([150, 300, 600]),
            "automatic_replay": chance.random() < 0.5,
        }
        if not checkpoint.is_interrupted(spark, str(self.folder / "checkpoint")):
            given["kafka_fields"] = chance.choice(
                [("partition", "offset"), ("partition", "offset", "timestamp")]
            )
        pipeline = self.settings.pipeline.model_copy(update=given)
        name = f"name{chance.randrange(10**6)}"
        self.settings = self.settings.model_copy(update={"pipeline": pipeline, "name": name})


class LostCheckpoint(Kind):
    """A checkpoint that is lost, now and then; the ingest resumes from its table."""

    def meddle(self, spark: SparkSession, chance: random.Random) -> None:
        """Lose the checkpoint."""
        if chance.random() < 0.6:
            shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)


def several(*topics: str) -> tuple[type[Kind], Columns]:
    """Return the kind of a pipeline of these topics."""
    return SeveralTopics, {"topic": ",".join(topics), "table_path": "/mnt/datalake/{topic}"}


KINDS: Mapping[str, tuple[type[Kind], Columns]] = {
    "plain Avro": (PlainAvro, {"avro_form": "plain"}),
    "keys": (Keys, {"key": "avro"}),
    "two topics": several("several-a", "several-b"),
    "twenty topics": several(*(f"twenty-{number:02d}" for number in range(TOPICS))),
    "JSON Schema": (JsonSchema, {"value_format": "json_schema"}),
    "altered table": (AlteredTable, {}),
    "changed configuration": (ChangedConfiguration, {}),
    "lost checkpoint": (LostCheckpoint, {"resume": "table"}),
}


def made(name: str, addresses: Any, scratch: Path) -> Kind:  # noqa: ANN401 (of the workbench)
    """Return a kind with its topics."""
    of, given = KINDS[name]
    folder = scratch / name.replace(" ", "-")
    folder.mkdir()
    servers, url = addresses.kafka_bootstrap_servers, addresses.schema_registry_url
    settings = settings_for(servers, url, name.replace(" ", "-"), folder, batch=300)
    pipeline = settings.pipeline.model_copy(update=dict(given))
    kind = of(settings.model_copy(update={"pipeline": pipeline}), folder)
    kind.create()
    return kind


# The contents of the tables


def done(spark: SparkSession, kind: Kind) -> checkpoint.Offsets:
    """Return which offsets the checkpoint calls done; of a topic that is paused, none."""
    path = str(kind.folder / "checkpoint")
    position = checkpoint.position(spark, path) or {}
    ledger = kind.folder / "checkpoint_paused"
    if not ledger.exists():
        return position
    paused = delta.read(spark, str(ledger)).where("resumed_at IS NULL").select("topic").distinct().collect()
    return {topic: offsets for topic, offsets in position.items() if (topic,) not in paused}


def stored_locations(spark: SparkSession, kind: Kind, topic: str) -> dict[tuple[int, int], list[Location]]:
    """Return by partition and offset where the tables of a topic have it."""
    locations: dict[tuple[int, int], list[Location]] = defaultdict(list)
    table = kind.folder / (topic if len(kind.topics) > 1 else "table")
    if delta.is_table(spark, str(table)):
        rows = delta.read(spark, str(table))
        names = [name for name in kind.columns() if name in rows.columns]
        for each in rows.select("_kafka.partition", "_kafka.offset", *names).collect():
            values = {name: each[name] if name in names else None for name in kind.columns()}
            plain = {
                name: tuple(value) if isinstance(value, tuple) else value for name, value in values.items()
            }
            locations[each["partition"], each["offset"]].append(row(**plain))
    quarantine = f"{table}_quarantine"
    if delta.is_table(spark, quarantine):
        waiting = replay_claims.read(spark, quarantine).where("replayed_at IS NULL")
        for each in waiting.select("partition", "offset", "reason").collect():
            locations[each["partition"], each["offset"]].append(bad(each["reason"]))
    return locations


def wrong(spark: SparkSession, kind: Kind, topic: str, ends: Mapping[int, int]) -> Iterable[str]:
    """Say which records of a topic are not right; `ends` are the offsets that are done, by partition."""
    stored = stored_locations(spark, kind, topic)
    for number in range(kind.sent):
        location = number % PARTITIONS, number // PARTITIONS
        got, may_be = stored.pop(location, []), kind.locations(number)
        if len(got) > 1 or (got and got[0] not in may_be):
            yield f"topic {topic}, record {number} at {location}: is {got}, and may be one of {may_be}"
        if not got and location[1] < ends.get(location[0], 0):
            yield f"topic {topic}, record {number} at {location}: is nowhere, though its batch is done"
    yield from (
        f"topic {topic}: {got} at {location}, where nothing was sent" for location, got in stored.items()
    )


def check_records(spark: SparkSession, kind: Kind, step: str) -> None:
    """Stop at the first records that are not right."""
    position = done(spark, kind)
    faults = [fault for topic in kind.topics for fault in wrong(spark, kind, topic, position.get(topic, {}))]
    if (kind.folder / "checkpoint" / "sources" / "0" / "0").exists():
        report = audit.audit_ingest(spark, kind.settings)
        faults += [f"audit: {finding}" for finding in report.findings]
    if faults:
        raise click.ClickException(f"{step}: " + "\n".join(faults[:10]))
    finished = sum(sum(offsets.values()) for offsets in position.values())
    console.print(f"  {step}: {finished:,} of {kind.sent * len(kind.topics):,} done, all right")


def torture(spark: SparkSession, kind: Kind, name: str, kills: int, chance: random.Random) -> None:
    """Send, kill, look, meddle; at the end drain, and look at everything."""
    for number in range(1, kills + 1):
        kind.send(RECORDS // len(kind.topics))
        # At a step it dies in its first batch; at random moments it gets on.
        moment = chance.choice([*["random"] * len(STEPS), *STEPS])
        ingest = Ingest(kind.folder, kind.settings)
        if moment == "random":
            moment = ingest.kill_at_random(chance, BATCHES)
        else:
            ingest.stop_at(moment)
        check_records(spark, kind, f"{name}, kill {number} of {kills}, {moment}")
        kind.meddle(spark, chance)
    kind.before_end()
    for count in (RECORDS // len(kind.topics), 2):
        # Paused topics are resumed with the next records.
        kind.send(count)
        Ingest(kind.folder, kind.settings).drain()
    check_records(spark, kind, f"{name}, drained")
    position = done(spark, kind)
    ends = {topic: sum(offsets.values()) for topic, offsets in position.items()}
    if ends != dict.fromkeys(kind.topics, kind.sent):
        raise click.ClickException(f"{name}: the checkpoint says {ends}, not {kind.sent:,} records each")


@click.command()
@click.option("--kills", default=8, show_default=True, help="Of each kind.")
@click.option("--seed", default=1, show_default=True, help="Same seed, same order and moments.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only these.")
def main(kills: int, seed: int, kinds: tuple[str, ...]) -> None:
    """Run it on a separate broker and registry."""
    started, wanted = time.monotonic(), kinds or tuple(KINDS)
    with own_services("torture-kinds") as (scratch, addresses):
        spark = start_spark(scratch)
        for name in wanted:
            torture(spark, made(name, addresses, scratch), name, kills, random.Random(seed))
        spark.stop()
    console.print(
        f"{len(wanted)} kinds, {kills * len(wanted)} kills, each record in one place with its value "
        f"({time.monotonic() - started:.0f} s)"
    )


if __name__ == "__main__":
    main()
