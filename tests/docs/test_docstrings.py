"""The examples of the public names and of pages are run, each by itself, on what `World` has."""

import doctest
import inspect
import json

import pytest
import yaml
from confluent_kafka import Producer

import topiclake as tl
from tests.services import databases
from tests.support.pages import page_blocks
from tests.support.selection import thorough_for
from topiclake.schema_registry.wire_format import frame
from workbench.dbutils import DBUtils

#: Four rows, of which three are within ten minutes, and a value that is none.
READINGS = [
    {"sensor": "boiler", "celsius": 79.5, "at": "2026-03-01T10:00:00Z"},
    {"sensor": "boiler", "celsius": 80.5, "at": "2026-03-01T10:04:00Z"},
    {"sensor": "cellar", "celsius": 11.0, "at": "2026-03-01T10:05:00Z"},
    {"sensor": "boiler", "celsius": 79.0, "at": "2026-03-01T10:20:00Z"},
]
#: Pages whose blocks of Python are one example.
PAGES = ["transforms.md", "own_sinks.md", "changes.md"]
TRIP = {"type": "record", "name": "Trip", "fields": [{"name": "miles", "type": "long"}]}


class World:
    """A topic `readings` of JSON that was ingested, and a topic `trips` of Avro that was not."""

    def __init__(self, spark, addresses, database, folder):
        self.spark, self.folder, self.conf = spark, folder, folder / "conf"
        paths = {
            "table_path": "/mnt/datalake/{}",
            "checkpoint_path": "/mnt/datalake/checkpoints/{}",
        }
        shared = {"starting_offsets": "earliest", "trigger": "availableNow"}
        pipelines = {
            "readings": {
                "value_format": "json",
                "value_schema": "sensor STRING NOT NULL, celsius DOUBLE, at TIMESTAMP NOT NULL",
                "kafka_fields": "partition,offset,timestamp",
                "mode": "PERMISSIVE",
            },
            "trips": {"mode": "FAILFAST"},
        }
        self.conf.mkdir()
        (self.conf / "pipelines").mkdir()
        (self.conf / "pipelines" / "newest.yaml").write_text(page_blocks("changes.md", "yaml")[0])
        (self.conf / "local.yaml").write_text("")
        (self.conf / "base.yaml").write_text(
            yaml.safe_dump(
                {
                    "kafka": {"bootstrap_servers": addresses.kafka_bootstrap_servers},
                    "schema_registry": {"url": addresses.schema_registry_url},
                    "storage": {"source": folder.as_uri(), "mount_point": "/mnt/datalake"},
                    "database": {
                        "url": database.url,
                        "username": "{{secrets/database/username}}",
                        "password": "{{secrets/database/password}}",
                        "tls": False,
                    },
                    "pipelines": {
                        name: {"topic": name, "view": name, **shared, **given}
                        | {key: path.format(name) for key, path in paths.items()}
                        for name, given in pipelines.items()
                    },
                }
            )
        )
        (self.conf / "secrets.yaml").write_text(
            yaml.safe_dump({"database": {"username": databases.USER, "password": databases.PASSWORD}})
        )
        (self.conf / "secrets.yaml").chmod(0o600)
        self.settings = tl.load_settings("readings", {}, secrets=self.dbutils().secrets.get, conf=self.conf)

    def dbutils(self):
        return DBUtils(self.folder / "home", self.folder, {"env": "local"})

    def fill(self):
        registry = tl.SchemaRegistry.from_settings(self.settings.schema_registry)
        trip = frame(registry.register("trips-value", json.dumps(TRIP)), b"\x06")
        self.send("readings", *(json.dumps(reading).encode() for reading in READINGS), b"none")
        self.send("trips", trip)
        tl.await_caught_up(tl.start_ingest(self.spark, self.settings), "availableNow")

    def send(self, topic, *values):
        assert tl.ensure_topic(self.settings.kafka, topic, 1) == 1
        producer = Producer(tl.client_settings(self.settings.kafka))
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(120) == 0

    def names(self):
        """What examples know: a session without views and settings of other examples, among others."""
        return {
            "tl": tl,
            "spark": self.spark.newSession(),
            "dbutils": self.dbutils(),
            "settings": self.settings,
            "conf": self.conf,
            "folder": self.folder,
        }


@pytest.fixture(scope="module")
def world(spark, embedded, tmp_path_factory):
    with databases.database("postgresql") as database:
        world = World(spark, embedded[1], database, tmp_path_factory.mktemp("world"))
        world.fill()
        yield world


def example_of(name):
    doc = inspect.getdoc(getattr(tl, name))
    _, found, example = doc.partition("\nExample:\n")
    assert found, f"{name} has no example"
    return example


@pytest.mark.parametrize("name", tl.__all__)
def test_the_example_of_a_public_name_runs(world, name):
    run_example(world, name, example_of(name))


@pytest.mark.parametrize(
    "page",
    thorough_for(("changes.md", "transforms.md"), PAGES, "docstrings and tests make the same calls"),
)
def test_the_example_of_a_page_runs(world, page):
    run_example(world, "tl.", "".join(page_blocks(page, "python")))


def run_example(world, name, text):
    test = doctest.DocTestParser().get_doctest(text, world.names(), name, None, None)
    assert test.examples
    assert any(name in example.source for example in test.examples)
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert failed == 0, "".join(said)
