"""What each Kafka client is told; no broker is needed for that."""

import json

import pytest

from topiclake.config.kafka import KafkaSettings
from topiclake.config.pipeline import PipelineSettings
from topiclake.kafka import client as kafka_client
from topiclake.kafka import source as kafka_source
from topiclake.kafka import writer as kafka_writer

#: What a password may hold, and how it stands in quotation marks in a JAAS configuration.
AWKWARD = {
    "plain": "plain",
    'with "quote"': r"with \"quote\"",
    "back\\slash": r"back\\slash",
    '\\"': r"\\\"",
    "a;b = c 'd' $e #f": "a;b = c 'd' $e #f",
    "žž€": "žž€",
    "": "",
}


def settings(secrets=None, **given):
    return KafkaSettings.model_validate(
        {"bootstrap_servers": "broker:9092"} | given,
        context={"secrets": lambda _scope, key: (secrets or {})[key]},
    )


def sasl(username="me", password="pw", **given):
    return settings(
        {"user": username, "password": password},
        security_protocol="SASL_SSL",
        username="{{secrets/s/user}}",
        password="{{secrets/s/password}}",
        **given,
    )


def pipeline(**given):
    needed = {"topic": "gps", "view": "gps", "table_path": "/t", "checkpoint_path": "/c"}
    return PipelineSettings.model_validate(needed | given)


def options(kafka_settings, **given):
    return kafka_source.reader_options(kafka_settings, pipeline(**given))


def unquoted(text):
    """Read a quoted JAAS value as Java's StreamTokenizer does: a backslash takes the next character."""
    assert text[0] == text[-1] == '"'
    found, rest = [], iter(text[1:-1])
    for character in rest:
        assert character != '"', "the value ends too early"
        found.append(next(rest) if character == "\\" else character)
    return "".join(found)


# The writer


def test_spark_writes_with_the_same_login_and_none_of_the_consumers_settings():
    written = kafka_writer.writer_options(sasl(consumer={"max.poll.records": 7}), "trips")
    assert written["topic"] == "trips"
    assert written["kafka.bootstrap.servers"] == "broker:9092"
    assert written["kafka.sasl.jaas.config"] == options(sasl())["kafka.sasl.jaas.config"]
    assert not [key for key in written if "poll" in key or key in ("subscribe", "startingOffsets")]


def test_spark_writes_with_the_configured_settings_of_the_producer():
    written = kafka_writer.writer_options(
        settings(producer={"linger.ms": 5, "max.request.size": 4_000_000}), "trips"
    )
    assert written["kafka.linger.ms"] == "5"
    assert written["kafka.max.request.size"] == "4000000"
    assert written["kafka.compression.type"] == "lz4"
    assert "kafka.linger.ms" not in options(settings(producer={"linger.ms": 5}))


# The reader


def test_a_plain_broker_gets_these_options_and_no_others():
    assert options(settings()) == {
        "subscribe": "gps",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.isolation.level": "read_committed",
    }


def test_offsets_of_each_partition_are_kafkas_json():
    offsets = {"gps": {"0": 23, "1": -2}}
    assert json.loads(options(settings(), starting_offsets=offsets)["startingOffsets"]) == offsets
    assert options(settings(), starting_offsets="latest")["startingOffsets"] == "latest"


def test_the_rate_limit_is_set_only_where_it_is_asked_for():
    assert options(settings(), max_offsets_per_trigger=500)["maxOffsetsPerTrigger"] == "500"
    assert "maxOffsetsPerTrigger" not in options(settings())


def test_consumer_settings_stand_behind_kafkas_prefix_as_text():
    found = options(settings(consumer={"max.poll.records": 20000, "client.id": "x"}))
    assert found["kafka.max.poll.records"] == "20000"
    assert found["kafka.client.id"] == "x"


def test_how_long_the_consumer_waits_for_more_can_be_set():
    assert options(settings(consumer={"fetch.max.wait.ms": 500}))["kafka.fetch.max.wait.ms"] == "500"


def test_an_authority_of_ones_own_is_a_pem_truststore():
    found = options(settings(security_protocol="SSL", ca_file="/etc/ca.pem"))
    assert found["kafka.security.protocol"] == "SSL"
    assert found["kafka.ssl.truststore.type"] == "PEM"
    assert found["kafka.ssl.truststore.location"] == "/etc/ca.pem"
    assert not [name for name in found if "sasl" in name]


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
@pytest.mark.parametrize("is_databricks", [False, True])
def test_a_login_names_the_platforms_module(mechanism, module, is_databricks, monkeypatch):
    if is_databricks:
        monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    found = options(sasl(sasl_mechanism=mechanism))
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.sasl.mechanism"] == mechanism
    prefix = "kafkashaded." if is_databricks else ""
    assert found["kafka.sasl.jaas.config"] == f'{prefix}{module} required password="pw" username="me";'


@pytest.mark.parametrize(("password", "escaped"), AWKWARD.items())
def test_an_awkward_password_arrives_as_it_is(password, escaped):
    jaas = options(sasl(password=password))["kafka.sasl.jaas.config"]
    quoted = jaas.partition(" password=")[2].removesuffix(' username="me";')
    assert quoted == f'"{escaped}"'
    assert unquoted(quoted) == password


def test_an_awkward_user_arrives_as_it_is():
    jaas = options(sasl(username='a" password="b'))["kafka.sasl.jaas.config"]
    quoted = jaas.partition(" username=")[2].removesuffix(";")
    assert unquoted(quoted) == 'a" password="b'


# librdkafka: producer, consumer, administrator


def test_a_client_of_a_plain_broker_needs_no_login():
    found = kafka_client.client_settings(settings())
    assert found == {"bootstrap.servers": "broker:9092", "security.protocol": "PLAINTEXT", "log_level": 0}


def test_a_client_with_a_login_gets_user_and_password_unquoted():
    found = kafka_client.client_settings(sasl(password='p"\\', ca_file="/ca.pem"))
    assert found["sasl.mechanism"] == "PLAIN"
    assert (found["sasl.username"], found["sasl.password"]) == ("me", 'p"\\')
    assert found["ssl.ca.location"] == "/ca.pem"
