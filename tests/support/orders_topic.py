"""The topic of docs/your-topic.md, with orders of two versions and bad records, and the page's commands."""

from __future__ import annotations

import base64
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import fastavro
from confluent_kafka import Producer

from tests.support.environment import without_workbench
from tests.support.pages import page_blocks
from topiclake.config.load import load_settings
from topiclake.kafka.admin import ensure_topic
from topiclake.kafka.client import client_settings
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.wire_format import frame
from workbench.host.installation import cache_folder
from workbench.host.program_cache import node, npm_program
from workbench.services.service import Addresses

PROJECT = Path(__file__).parents[2]
KAFKAJS = PROJECT / "tests" / "programs" / "kafkajs"
TOPIC = "shop.orders"
ORDERS = [
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]},
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    },
]
POISON = (b"", b"no Avro", None, frame(2**30, b"x"), b"\0\0")


def send_by_confluent_kafka(topic: str) -> None:
    """Send 20 orders of two versions, and five records that are none."""
    settings = load_settings("gps", {}, conf=PROJECT / "conf")
    ensure_topic(settings.kafka, topic, 3)
    registry = SchemaRegistry.from_settings(settings.schema_registry)
    ids = [registry.register(f"{topic}-value", json.dumps(schema)) for schema in ORDERS]
    producer = Producer(client_settings(settings.kafka))
    for number in range(20):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, ORDERS[number % 2], {"id": number, "note": f"n{number}"})
        producer.produce(topic, frame(ids[number % 2], written.getvalue()), partition=number % 3)
    for value in POISON:
        producer.produce(topic, value, partition=0)
    assert producer.flush(120) == 0


def send_by_kafkajs(
    topic: str, addresses: Addresses, schemas: Sequence[object], records: Sequence[tuple[int, object]]
) -> None:
    """Send records of several schemas, and the same five bad ones, by KafkaJS with its registry client.

    Args:
        topic: The new topic.
        addresses: Of broker and registry.
        schemas: The versions of its subject.
        records: For each record the number of its schema, and its value.
    """
    script = npm_program(cache_folder(), KAFKAJS, "index.js", print)
    request = {
        "broker": addresses.kafka_bootstrap_servers,
        "registry": addresses.schema_registry_url,
        "topic": topic,
        "schemas": [json.dumps(schema) for schema in schemas],
        "records": records,
        "poison": [None if value is None else base64.b64encode(value).decode() for value in POISON],
    }
    subprocess.run(
        [node(), KAFKAJS / "publish.js"],
        env=os.environ | {"NODE_PATH": str(script.parents[1])},
        input=json.dumps(request),
        text=True,
        check=True,
        timeout=120,
    )


def page_commands(topic: str, page: str) -> list[str]:
    """Return the commands of a page's blocks, for a topic."""
    return [line.replace(TOPIC, topic) for block in page_blocks(page, "bash") for line in block.splitlines()]


class UserProject:
    """A folder with the configuration and notebooks of a user, in which commands run.

    Args:
        folder: The new folder.
        variables: Those of the services and of the JVM.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        for name in ("conf", "notebooks"):
            shutil.copytree(PROJECT / name, folder / name)
        shutil.copy(PROJECT / "databricks.yml", folder)
        (folder / "jars").symlink_to(PROJECT / "jars")
        self._variables = without_workbench() | dict(variables) | {"COLUMNS": "160"}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command that a page writes as `topiclake …` or `python -m workbench …`."""
        words = shlex.split(command)
        words = words[1:] if words[0] == "topiclake" else words[3:]
        return subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
