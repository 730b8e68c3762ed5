"""What may be read from Kafka, and what Spark is told of it; no broker is needed for that."""

import json
from datetime import datetime, timezone
from types import MappingProxyType

import pytest

from topiclake.config.kafka import CONSUMER, PRODUCER
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError, OffsetsLostError
from topiclake.kafka import source as kafka_source
from topiclake.kafka.lost_ranges import LostRange, compare, joined
from topiclake.kafka.offsets import BrokerOffsets, require_partitions
from topiclake.kafka.source import range_options
from topiclake.streaming.lost_offsets import require_configured

BASE = """
kafka: {bootstrap_servers: 'base:9092'}
schema_registry: {url: 'http://base:8081'}
storage: {source: 'file:///base', mount_point: /mnt/lake}
pipelines:
  gps: {topic: gps, view: gps, table_path: '/mnt/lake/{topic}', checkpoint_path: /mnt/lake/checkpoint}
"""
NEW_YEAR = "2026-01-01T00:00:00Z"
NEW_YEAR_MS = 1767225600000


@pytest.fixture
def load(tmp_path):
    def loaded(local="", **parameters):
        (tmp_path / "base.yaml").write_text(BASE)
        (tmp_path / "local.yaml").write_text(local)
        return load_settings("gps", parameters, conf=tmp_path)

    return loaded


@pytest.fixture
def refused(load):
    def text(local="", **parameters):
        with pytest.raises(ConfigError) as raised:
            load(local, **parameters)
        return str(raised.value)

    return text


def of_stream(settings, known=MappingProxyType({})):
    return kafka_source.of_stream(settings.pipeline, known)


# Which topics


def test_topics_are_subscribed_matched_or_assigned(load):
    one = {"table_path": "/t"}
    assert of_stream(load(**one))["subscribe"] == "gps"
    assert of_stream(load(**one, wait_for_topic="true"))["subscribePattern"] == "gps"
    assert of_stream(load(topic_pattern="g.*"))["subscribePattern"] == "(?:g.*)"
    assert kafka_source.of_batch(load(topic_pattern="g.*").pipeline)["subscribePattern"] == "g.*"
    assigned = of_stream(load(assign='{"gps": [0, 3]}'))
    assert json.loads(assigned["assign"]) == {"gps": [0, 3]}
    ways = {"subscribe", "subscribePattern", "assign"}
    for given in ({}, one, {"topic_pattern": "g.*"}, {"assign": '{"gps": [0, 3]}'}):
        assert len(ways & set(of_stream(load(**given)))) == 1


def test_of_several_topics_those_are_read_too_that_were_taken_off_the_list(load):
    known = {"gps": {0: 5}, "old.one": {0: 7, 1: 8}}
    assert of_stream(load(topic="gps,b-c"), known)["subscribePattern"] == r"gps|b\-c|old\.one"
    assert of_stream(load(topic_pattern="g.*|x"), known)["subscribePattern"] == r"(?:g.*|x)|old\.one"
    assigned = of_stream(load(assign='{"gps": [0]}'), known)
    assert json.loads(assigned["assign"]) == {"gps": [0], "old.one": [0, 1]}


def test_who_assigns_partitions_names_the_topics(load):
    of_file = "pipelines: {gps: {topic_pattern: 'g.*'}}"
    settings = load(of_file, assign='{"b": [1], "a": [0]}')
    assert (settings.pipeline.topic, settings.pipeline.topic_pattern) == ("a,b", None)
    assert settings.for_topic("b").pipeline.assign == {"b": (1,)}
    assigned = "pipelines: {gps: {assign: {gps: [0]}}}"
    assert load(assigned).pipeline.assign == {"gps": (0,)}
    assert load(assigned, topic="other").pipeline.assign is None
    assert load(assigned, topic_pattern="o.*").pipeline.assign is None


def test_ways_that_exclude_each_other_are_refused(refused):
    assert "parameter assign is wrong: and topic_pattern exclude each other" in refused(
        assign='{"gps": [0]}', topic_pattern="g.*"
    )
    assert "must name the partitions of topic a, or leave out topic" in refused(
        assign='{"b": [0]}', topic="a"
    )


@pytest.mark.parametrize(
    "text", ["gps", "[0]", '{"gps": 0}', '{"gps": []}', '{"gps": ["0"]}', '{"gps": [-1]}']
)
def test_an_assignment_of_another_form_shows_an_example(refused, text):
    assert 'parameter assign is wrong: must be JSON like {"gps": [0, 1]}' in refused(assign=text)


# From where to where


def test_a_time_begins_all_partitions_or_each(load):
    options = of_stream(load(starting_offsets=NEW_YEAR))
    assert options["startingTimestamp"] == str(NEW_YEAR_MS)
    assert options["startingOffsetsByTimestampStrategy"] == "latest"
    assert "startingOffsets" not in options
    each = {"gps": {"0": NEW_YEAR, "1": "2026-01-01T01:00:00.5+01:00"}}
    options = of_stream(load(starting_offsets=json.dumps(each)))
    assert json.loads(options["startingOffsetsByTimestamp"]) == {
        "gps": {"0": NEW_YEAR_MS, "1": NEW_YEAR_MS + 500}
    }
    strict = load(starting_offsets=NEW_YEAR, starting_offsets_by_timestamp_strategy="error")
    assert of_stream(strict)["startingOffsetsByTimestampStrategy"] == "error"
    assert "startingOffsetsByTimestampStrategy" not in of_stream(load())


def test_a_time_in_a_file_is_one_without_quotation_marks_too(load):
    settings = load(f"pipelines: {{gps: {{starting_offsets: {NEW_YEAR}}}}}")
    assert settings.pipeline.starting_offsets == datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00", "2026-01-01", "yesterday", "1767225600000"])
def test_a_time_without_its_zone_is_refused(refused, text):
    assert "a time with its zone like 2026-01-01T00:00:00Z" in refused(starting_offsets=text)


def test_offsets_and_times_are_not_mixed(refused):
    mixed = json.dumps({"gps": {"0": 1, "1": NEW_YEAR}})
    assert "must hold offsets, or times" in refused(starting_offsets=mixed)
    assert "partitions by their numbers" in refused(starting_offsets='{"gps": {"first": 1}}')
    assert "from 0 on, -2 for the earliest" in refused(starting_offsets='{"gps": {"0": -3}}')


def test_offsets_are_those_of_the_pattern_or_of_the_assigned_partitions(load, refused):
    given = {"topic_pattern": "g.*", "starting_offsets": '{"gps2": {"0": 1}}'}
    assert load(**given).pipeline.starting_offsets == {"gps2": {"0": 1}}
    assert "topics that match g.*; taxi does not" in refused(
        topic_pattern="g.*", starting_offsets='{"taxi": {"0": 1}}'
    )
    assert "must be those of the partitions 0, 3 of topic gps" in refused(
        assign='{"gps": [0, 3]}', starting_offsets='{"gps": {"0": 1}}'
    )


def test_only_a_batch_read_has_an_end(load):
    settings = load(ending_offsets='{"gps": {"0": 5, "1": -1}}', max_offsets_per_trigger="5")
    batch = kafka_source.of_batch(settings.pipeline)
    assert json.loads(batch["endingOffsets"]) == {"gps": {"0": 5, "1": -1}}
    assert not [name for name in batch if "Trigger" in name]
    assert not [name for name in of_stream(settings) if name.startswith("ending")]
    assert kafka_source.of_batch(load().pipeline)["endingOffsets"] == "latest"
    timed = kafka_source.of_batch(load(ending_offsets=NEW_YEAR).pipeline)
    assert timed["endingTimestamp"] == str(NEW_YEAR_MS)
    assert "startingOffsetsByTimestampStrategy" not in timed


@pytest.mark.parametrize("text", ["earliest", '{"gps": {"0": -2}}'])
def test_nothing_ends_at_the_earliest_record(refused, text):
    assert "parameter ending_offsets is wrong: must " in refused(ending_offsets=text)


# How fast, and what is lost


def test_data_loss_ends_a_query_unless_it_is_allowed(load):
    one = {"table_path": "/t"}
    assert of_stream(load(**one))["failOnDataLoss"] == "true"
    assert of_stream(load(**one, fail_on_data_loss="false"))["failOnDataLoss"] == "false"
    # One of several topics is paused.
    assert of_stream(load())["failOnDataLoss"] == "false"


def test_rates_are_limited_where_it_is_asked_for(load):
    limits = {"min_offsets_per_trigger": "10", "max_trigger_delay": "2 minutes"}
    options = of_stream(load(trigger="1 second", max_offsets_per_trigger="10", min_partitions="8", **limits))
    assert options["maxOffsetsPerTrigger"] == options["minOffsetsPerTrigger"] == "10"
    assert (options["maxTriggerDelay"], options["minPartitions"]) == ("120s", "8")
    bare = {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions"}
    assert not bare & set(of_stream(load()))


def test_available_now_waits_for_nothing(load):
    limits = {"min_offsets_per_trigger": "10", "max_trigger_delay": "2 minutes"}
    assert not {"minOffsetsPerTrigger", "maxTriggerDelay"} & set(of_stream(load(**limits)))


def test_limits_that_contradict_each_other_are_refused(refused):
    assert "min_offsets_per_trigger (3) must not be more than max_offsets_per_trigger (2)" in refused(
        min_offsets_per_trigger="3", max_offsets_per_trigger="2"
    )
    assert "max_trigger_delay needs min_offsets_per_trigger" in refused(max_trigger_delay="1 minute")
    assert "an interval such as '10 minutes'" in refused(max_trigger_delay="15m", min_offsets_per_trigger="3")


# The consumer


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("group.id", "kafka.group_id_prefix"),
        ("auto.offset.reset", "starting_offsets"),
        ("key.deserializer", "set key of the pipeline"),
        ("value.deserializer", "avro_form"),
        ("enable.auto.commit", "the checkpoint keeps the offsets"),
        ("interceptor.classes", "loads a class"),
        ("sasl.login.callback.handler.class", "kafka.username and kafka.password"),
        ("some.thing.class", "loads a class"),
        ("bootstrap.servers", "kafka.bootstrap_servers"),
        ("ssl.endpoint.identification.algorithm", "kafka.ca_file"),
        ("kafka.max.poll.records", "leave out the prefix kafka."),
        ("max.poll.recrods", "is unknown; allowed: check.crcs, client.dns.lookup, client.id"),
    ],
)
def test_a_consumer_setting_that_is_not_allowed_says_why_and_what_instead(refused, name, instead):
    text = refused(f"kafka: {{consumer: {{{name}: hunter2}}}}")
    assert text.startswith(f"kafka.consumer.{name} in ")
    assert instead in text
    assert "hunter2" not in text


def test_a_password_among_the_consumers_settings_is_not_shown(refused):
    text = refused("kafka: {consumer: {max.poll.records: 5, sasl.jaas.config: 'x password=\"hunter2\"'}}")
    assert "logins are secrets" in text
    assert "hunter2" not in text


def test_consumer_settings_have_values_of_their_kind(load, refused):
    text = "kafka: {consumer: {isolation.level: read_committed, check.crcs: false, max.poll.records: '7'}}"
    assert load(text).kafka.consumer == {
        "isolation.level": "read_committed",
        "check.crcs": "false",
        "max.poll.records": "7",
    }
    assert "isolation.level must be read_uncommitted or read_committed" in refused(
        "kafka: {consumer: {isolation.level: committed}}"
    )
    assert "max.poll.records must be a whole number" in refused("kafka: {consumer: {max.poll.records: many}}")
    for client in (CONSUMER, PRODUCER):
        assert not set(client.allowed) & set(client.refused)
        assert not [name for name in client.allowed if name.endswith("class") or name[:3] in ("sas", "ssl")]


# The producer


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("acks", "could lose a record"),
        ("enable.idempotence", "or have it twice"),
        ("value.serializer", "sent as bytes"),
        ("partitioner.class", "loads a class"),
        ("ssl.truststore.location", "kafka.ca_file"),
        ("max.poll.records", "is unknown; allowed: batch.size, buffer.memory"),
    ],
)
def test_a_producer_setting_that_is_not_allowed_says_why_and_what_instead(refused, name, instead):
    text = refused(f"kafka: {{producer: {{{name}: hunter2}}}}")
    assert text.startswith(f"kafka.producer.{name} in ")
    assert instead in text
    assert "hunter2" not in text


def test_producer_settings_have_values_of_their_kind(load, refused):
    text = "kafka: {producer: {compression.type: zstd, max.request.size: '7'}}"
    assert load(text).kafka.producer == {"compression.type": "zstd", "max.request.size": "7"}
    assert "compression.type must be none or gzip" in refused("kafka: {producer: {compression.type: rar}}")
    assert "linger.ms must be a whole number" in refused("kafka: {producer: {linger.ms: long}}")


def test_groups_get_the_prefix_that_the_broker_allows(load):
    prefixed = load("kafka: {group_id_prefix: team-a}")
    assert range_options(prefixed.kafka)["groupIdPrefix"] == "team-a"
    assert "groupIdPrefix" not in range_options(load().kafka)


# Partitions that are there


def test_partitions_that_are_not_there_are_named(load):
    held = BrokerOffsets({"gps": {0: (0, 9), 1: (0, 9)}})
    for given in (
        {"assign": '{"gps": [1, 2]}'},
        {"starting_offsets": '{"gps": {"0": 1}}'},
        {"ending_offsets": '{"gps": {"0": 1, "1": 1, "2": 1}}'},
    ):
        (key,) = given
        pipeline = load(**given).pipeline
        with pytest.raises(ConfigError, match="which has 0, 1") as raised:
            require_partitions(pipeline, held)
        assert raised.value.fields == {
            "parameter": key,
            "topic": "gps",
            "partitions": {"assign": (1, 2), "starting_offsets": (0,), "ending_offsets": (0, 1, 2)}[key],
            "allowed": (0, 1),
        }
    require_partitions(load(assign='{"gps": [1]}', starting_offsets='{"gps": {"1": 1}}').pipeline, held)


# What is lost

HELD = BrokerOffsets({"gps": {0: (5, 9)}}, {"gps": "new"})


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        (5, "new", None),
        (9, "new", None),
        (3, "new", (3, 5, "aged_out")),
        (3, "", (3, 5, "aged_out")),
        (12, "new", (9, 9, "truncated")),
        (12, "", (5, 9, "recreated")),
        (12, "old", (5, 9, "recreated")),
        (7, "old", (5, 7, "recreated")),
        (9, "old", (5, 9, "recreated")),
        (5, "old", None),
        (0, "old", (0, 5, "aged_out")),
    ],
)
def test_what_is_lost_is_told_by_offsets_and_ids(wanted, known, expected):
    found = [
        (one.first, one.after, one.why) for one in compare({"gps": {0: wanted}}, HELD, ids={"gps": known})
    ]
    assert found == ([expected] if expected else [])


def test_a_partition_that_is_gone_has_no_end():
    (lost,) = compare({"gps": {1: 4}}, HELD)
    assert (lost.first, lost.after, lost.records, lost.why) == (4, None, None, "deleted")
    assert "partition 1: offset 4 and everything after it" in str(lost)


def test_of_a_batch_only_its_own_offsets_are_lost():
    wanted = {"gps": {0: 2}}
    (lost,) = compare(wanted, HELD, ends={"gps": {0: 4}})
    assert (lost.first, lost.after) == (2, 4)
    assert compare(wanted, HELD, ends={"gps": {0: 2}}) == []
    (lost,) = compare(wanted, HELD, ends={"gps": {0: 8}})
    assert (lost.first, lost.after) == (2, 5)


def test_a_loss_that_is_found_twice_is_one():
    def lost(first, after, why="aged_out", topic_id="a"):
        return LostRange("gps", 0, first, after, why, topic_id)

    assert joined([lost(5, 8), lost(0, 5), lost(3, 6)]) == [lost(0, 8)]
    assert joined([lost(5, 8), lost(0, 4)]) == [lost(0, 4), lost(5, 8)]
    again = [lost(0, 3, "recreated", "a"), lost(0, 3, "recreated", "b")]
    assert joined([*again, *again]) == again
    assert joined([lost(4, None, "deleted"), lost(4, None, "deleted")]) == [lost(4, None, "deleted")]


def test_a_batch_that_begins_with_lost_offsets_names_them(load):
    with pytest.raises(OffsetsLostError, match=r"\(2 records\)") as raised:
        require_configured(load(starting_offsets='{"gps": {"0": 3}}'), HELD)
    assert raised.value.fields == {"ranges": (("gps", 0, 3, 5, "aged_out"),)}
    require_configured(load(starting_offsets='{"gps": {"0": 3}}', fail_on_data_loss="false"), HELD)
    require_configured(load(starting_offsets='{"gps": {"0": 5}}'), HELD)
    require_configured(load(starting_offsets='{"gps": {"0": -2}}'), HELD)
