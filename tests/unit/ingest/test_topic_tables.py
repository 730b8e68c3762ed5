"""Topics whose table, by path or by name, cannot be theirs alone."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import topiclake as tl
from topiclake.errors import IngestError
from topiclake.ingest import isolated_topic, targets
from topiclake.ingest.topic_targets import Topics, owners_of
from topiclake.ingest.topic_targets import require_own_table as require_table


def require_own_table(location, topic, others=()):
    template = SimpleNamespace(table=location, quarantine=f"{location}_quarantine")
    topics = SimpleNamespace(template=template)
    require_table(topics, topic, owners_of(topics, (topic, *others)))


def refusal(location, topic, others=()):
    with pytest.raises(IngestError) as raised:
        require_own_table(location, topic, others)
    return raised.value.fields["reason"]


def test_topics_that_differ_by_case_only_have_one_table_in_a_catalog():
    assert refusal("lake.raw.{topic}", "gps", ["GPS"]) == "table_name"
    assert refusal("lake.raw.{topic}", "gps_QUARANTINE") == "quarantine_of_another"
    require_own_table("/lake/{topic}", "gps", ["GPS"])


@pytest.mark.parametrize("location", ["lake.raw.{topic}", "/lake/{topic}"])
def test_the_quarantine_of_another_topic_is_no_table(location):
    assert refusal(location, "gps_quarantine") == "quarantine_of_another"


def test_a_topic_with_a_dot_has_no_named_table():
    assert refusal("lake.raw.{topic}", "shop.orders") == "table_name"


@pytest.mark.parametrize(
    ("location", "topic"),
    [
        ("lake.raw.{topic}", "gps-eu"),
        ("lake.raw.{topic}_x", "gps_quarantine"),
        ("/lake/{topic}", "shop.orders"),
    ],
)
def test_other_topics_have_tables(location, topic):
    require_own_table(location, topic, ["ships"])


def test_the_table_of_each_topic_gets_its_id(tmp_path):
    (tmp_path / "base.yaml").write_text(
        """
        kafka: {bootstrap_servers: "localhost:1"}
        schema_registry: {url: "http://localhost:1"}
        storage: {source: "file:///lake", mount_point: /mnt/lake}
        pipelines:
          shop: {topic: "a,b", view: shop, table_path: "/mnt/lake/{topic}", checkpoint_path: /mnt/lake/c}
        """
    )
    (tmp_path / "local.yaml").write_text("")
    settings = tl.load_settings("shop", {}, conf=tmp_path)
    topics = Topics.from_settings(settings, targets.target(settings))
    noted = replace(topics, ids={"a": "id"}).target("a").properties[targets.TOPIC_PROPERTY]
    assert json.loads(noted) == {"name": "a", "id": "id"}
    assert topics.target("a").properties == {}


@pytest.mark.parametrize(
    ("error", "affects_one"),
    [
        (ConnectionError("the store does not answer"), True),
        (RuntimeError("[SPARK_JOB_CANCELLED] Job 7 cancelled as part of cancellation of all jobs"), False),
        (RuntimeError("java.lang.InterruptedException"), False),
    ],
)
def test_a_stop_of_the_query_pauses_no_topic(error, affects_one):
    assert isolated_topic.affects_one_topic(error) is affects_one
