"""`topiclake init` writes the configuration that a topic needs, or nothing."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from uuid import uuid4

import fastavro
import pytest
import yaml
from confluent_kafka import Producer

import topiclake as tl
from topiclake.errors import ConfigError, KafkaError, SchemaRegistryError, StorageError, TopicNotFoundError
from topiclake.kafka.admin import ensure_topic
from topiclake.kafka.client import client_settings
from topiclake.schema_registry.wire_format import frame
from workbench.commands.init import create_pipeline, require_same
from workbench.commands.topic_options import Request
from workbench.host.home import Home

PROJECT = Path(__file__).parents[3]
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
PROTOBUF = 'syntax = "proto3"; package shop; message Order { int64 id = 1; }'
JSON_SCHEMA = json.dumps({"type": "object", "title": "Order", "properties": {"id": {"type": "integer"}}})
NOWHERE = "127.0.0.1:9"


class Shop:
    """A project with a user's topic, whose name is unique."""

    def __init__(self, home: Home, addresses) -> None:
        self.home, self.addresses = home, addresses
        self.topic = f"orders-{uuid4().hex[:8]}"
        self.conf = home.project / "conf"
        settings = tl.load_settings("gps", {}, conf=self.conf)
        self.kafka, self.registry = settings.kafka, tl.SchemaRegistry.from_settings(settings.schema_registry)
        ensure_topic(self.kafka, self.topic, 3)

    def register(self, schema, subject="{topic}-value", schema_type="AVRO"):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self.registry.register(subject.format(topic=self.topic), text, schema_type=schema_type)

    def send(self, *values, key=None):
        producer = Producer(client_settings(self.kafka))
        for number, value in enumerate(values):
            producer.produce(self.topic, value=value, key=key, partition=number % 3)
        assert producer.flush(120) == 0

    def create(self, **options):
        return create_pipeline(self.home, Request("orders", self.topic, **options))

    def keys(self):
        return yaml.safe_load((self.conf / "pipelines" / "orders.yaml").read_text("utf-8"))

    def files(self):
        return sorted(path for path in self.conf.rglob("*") if path.is_file())


@pytest.fixture
def shop(embedded, tmp_path, monkeypatch) -> Shop:
    home, addresses = embedded
    for name, value in addresses.environment().items():
        monkeypatch.setenv(name, value)
    shutil.copytree(PROJECT / "conf", tmp_path / "project" / "conf")
    return Shop(Home(home.folder, tmp_path / "project"), addresses)


def order(number: int, schema_id: int | None = None) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, ORDER, {"id": number})
    return written.getvalue() if schema_id is None else frame(schema_id, written.getvalue())


def test_a_topic_of_avro_is_configured_by_its_sample(shop, tmp_path):
    schema_id = shop.register(ORDER)
    shop.send(*(order(n, schema_id) for n in range(20)), b"no Avro", None, frame(2**30, b"x"), b"\xff\xfe")
    created = shop.create(into=str(tmp_path / "lake"))
    assert created.sample.partitions == 3
    assert created.sample.formats == {
        "avro": 20,
        "text": 1,
        "tombstone": 1,
        "unknown_schema_id": 1,
        "binary": 1,
    }
    assert [path.name for path in created.files] == ["orders.yaml"]
    folder = (tmp_path / "lake").as_uri()
    assert shop.keys() == {
        "env": "local",
        "topic": shop.topic,
        "value_format": "avro",
        "starting_offsets": "earliest",
        "mode": "PERMISSIVE",
        "trigger": "availableNow",
        "view": "orders",
        "table_path": f"{folder}/orders",
        "checkpoint_path": f"{folder}/_checkpoints/orders",
    }
    settings = tl.load_settings("orders", {}, conf=shop.conf)
    assert (settings.env, settings.pipeline.topic) == ("local", shop.topic)


def test_subjects_that_records_name_are_found(shop):
    schema_id = shop.register(ORDER, "{topic}-shop.Order")
    shop.send(order(1, schema_id), key=frame(shop.register('"string"', "{topic}-key"), b"\x02a"))
    shop.create()
    keys = shop.keys()
    assert (keys["subject_strategy"], keys["record_names"]) == ("topic_record_name", ["shop.Order"])
    assert keys["key"] == "avro"
    assert keys["table_path"] == "/mnt/datalake/delta/orders"


def test_values_of_plain_avro_are_recognized(shop):
    shop.register(ORDER)
    shop.send(*(order(n) for n in range(200, 220)))
    shop.create()
    assert (shop.keys()["value_format"], shop.keys()["avro_form"]) == ("avro", "plain")


@pytest.mark.parametrize(
    ("schema", "schema_type", "value_format"),
    [(PROTOBUF, "PROTOBUF", "protobuf"), (JSON_SCHEMA, "JSON", "json_schema")],
)
def test_the_registry_says_which_format_a_schema_id_means(shop, schema, schema_type, value_format):
    shop.send(frame(shop.register(schema, schema_type=schema_type), b"{}"))
    shop.create()
    assert shop.keys()["value_format"] == value_format


def test_json_gets_the_columns_of_its_objects(shop):
    documents = [
        {"id": 1, "price": 2, "tags": ["a"], "to": {"zip": "1", "n": None}},
        {"id": 2, "price": 2.5, "x`y": True},
    ]
    shop.send(*(json.dumps(document).encode() for document in documents))
    shop.create()
    keys = shop.keys()
    assert (keys["value_format"], keys["value_schema"]) == (
        "json",
        "`id` BIGINT, `price` DOUBLE, `tags` ARRAY<STRING>, `to` STRUCT<`n`: STRING, `zip`: STRING>, "
        "`x``y` BOOLEAN",
    )


def test_text_is_text_and_a_format_may_be_given(shop):
    shop.send(b"one", b"two")
    shop.create(value_format="json")
    assert (shop.keys()["value_format"], shop.keys()["value_schema"]) == ("json", "value STRING")
    (shop.conf / "pipelines" / "orders.yaml").unlink()
    shop.create()
    assert shop.keys()["value_format"] == "text"


def test_an_empty_topic_has_the_format_of_its_subject(shop):
    shop.register(PROTOBUF, schema_type="PROTOBUF")
    created = shop.create()
    assert (shop.keys()["value_format"], created.proposal.evidence) == ("protobuf", "no record yet")


def test_a_new_broker_gets_an_environment_and_secrets_a_private_file(shop, tmp_path):
    shop.send(b"text")
    created = shop.create(
        bootstrap=shop.addresses.kafka_bootstrap_servers,
        registry=shop.addresses.schema_registry_url,
        into=str(tmp_path / "lake"),
        kafka={"security_protocol": "PLAINTEXT"},
        logins={"registry-username": "me", "registry-password": "se cret"},
    )
    names = [path.relative_to(shop.conf).as_posix() for path in created.files]
    assert names == [
        "secrets/orders/registry-username",
        "secrets/orders/registry-password",
        "orders.yaml",
        "pipelines/orders.yaml",
    ]
    assert [oct(path.stat().st_mode & 0o777) for path in created.files[:2]] == ["0o600", "0o600"]
    written = (shop.conf / "orders.yaml").read_text("utf-8") + (
        shop.conf / "pipelines/orders.yaml"
    ).read_text("utf-8")
    assert "se cret" not in written
    assert "password: '{{secrets/orders/registry-password}}'" in written
    settings = tl.load_settings("orders", {}, conf=shop.conf)
    assert (settings.env, settings.storage.mounted) == ("orders", False)
    assert settings.pipeline.table_path == f"{(tmp_path / 'lake').as_uri()}/orders"


def test_a_scope_has_the_secrets_elsewhere(shop, tmp_path):
    shop.send(b"text")
    created = shop.create(
        bootstrap=shop.addresses.kafka_bootstrap_servers,
        registry=shop.addresses.schema_registry_url,
        into=str(tmp_path / "lake"),
        scope="team",
        logins={"registry-username": "me", "registry-password": "secret"},
    )
    assert [path.name for path in created.files] == ["orders.yaml", "orders.yaml"]
    assert "{{secrets/team/registry-password}}" in (shop.conf / "orders.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"topic": "nowhere"}, TopicNotFoundError, "topic nowhere is not on the broker"),
        ({"name": "gps"}, ConfigError, "pipeline gps exists already"),
        ({"name": "a/b"}, ConfigError, "'a/b' cannot be a pipeline's name"),
        ({"env": "nothing"}, ConfigError, "environment nothing does not exist"),
        ({"env": "azure"}, ConfigError, "environment variable TOPICLAKE_"),
        ({"bootstrap": NOWHERE, "env": "local"}, ConfigError, "environment local exists already"),
        ({"bootstrap": NOWHERE}, ConfigError, "a new environment needs --registry"),
        ({"bootstrap": NOWHERE, "registry": "http://127.0.0.1:9"}, ConfigError, "needs --into"),
        ({"into": "gs://bucket"}, StorageError, "gs://bucket/orders has a form that is not allowed"),
        ({"into": f"{__file__}/lake"}, StorageError, "test_init.py is not a folder"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(shop, options, error, sentence):
    shop.send(b"text")
    before = shop.files()
    with pytest.raises(error, match=sentence):
        create_pipeline(shop.home, Request(**{"name": "orders", "topic": shop.topic, **options}))
    assert shop.files() == before


def test_a_service_that_does_not_answer_is_named(shop, tmp_path, monkeypatch):
    services = {"bootstrap": NOWHERE, "registry": "http://127.0.0.1:9", "into": str(tmp_path / "lake")}
    before = shop.files()
    with monkeypatch.context() as impatient:
        impatient.setattr("topiclake.kafka.admin.TIMEOUT_SECONDS", 1)
        with pytest.raises(KafkaError, match=f"the broker at {NOWHERE} does not answer"):
            shop.create(**services)
    shop.send(b"text")
    with pytest.raises(SchemaRegistryError, match=r"http://127\.0\.0\.1:9"):
        shop.create(**services | {"bootstrap": shop.addresses.kafka_bootstrap_servers})
    assert shop.files() == before


def test_a_topic_without_a_clear_format_is_refused(shop):
    with pytest.raises(
        ConfigError, match=f"topic {shop.topic} has no record, and {shop.topic}-value is not in"
    ):
        shop.create()
    shop.send(b"\xff\xfe")
    with pytest.raises(ConfigError, match="has no value of a known format"):
        shop.create()
    shop.send(b"text", b'{"a": 1}')
    with pytest.raises(ConfigError, match=r"several formats \(.*json: 1.*\).*--format"):
        shop.create()


def test_an_existing_pipeline_must_be_the_one_that_is_asked_for(shop, tmp_path):
    shop.send(b"text")
    shop.create(into=str(tmp_path / "lake"))
    require_same(shop.home, "orders", shop.topic, str(tmp_path / "lake"))
    require_same(shop.home, "orders", shop.topic, "")
    with pytest.raises(ConfigError, match="its topic is"):
        require_same(shop.home, "orders", "others", "")
    with pytest.raises(ConfigError, match="its folder is"):
        require_same(shop.home, "orders", shop.topic, str(tmp_path / "pond"))


def test_a_pipeline_may_write_into_a_table_by_name(shop):
    shop.send(b"text")
    shop.create(into="raw.orders", value_format="text")
    keys = shop.keys()
    assert (keys["table"], "table_path" in keys) == ("raw.orders", False)
    assert keys["checkpoint_path"] == "/mnt/datalake/delta/_checkpoints/orders"
    require_same(shop.home, "orders", shop.topic, "raw.orders")
    require_same(shop.home, "orders", shop.topic, "")
    with pytest.raises(ConfigError, match=r"its table is raw\.orders"):
        require_same(shop.home, "orders", shop.topic, "raw.others")
    with pytest.raises(ConfigError, match="a new environment needs a store"):
        create_pipeline(
            shop.home, Request("new", shop.topic, bootstrap="b:1", registry="http://r", into="raw.orders")
        )
