"""What `topiclake init` proposes for a sample: keys that the configuration accepts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from topiclake.config.load import load_settings
from topiclake.errors import ConfigError
from workbench.commands.init import _environment, _pipeline_text, propose
from workbench.commands.topic_options import Request
from workbench.commands.topic_sample import TopicSample

BASE = """
kafka: {bootstrap_servers: "b:1"}
schema_registry: {url: "http://r"}
storage: {source: "file:///lake", mount_point: /mnt/datalake}
"""


class Registry:
    """The subjects of a registry."""

    url = "http://r"

    def __init__(self, *subjects: str) -> None:
        self._subjects = subjects

    def subjects(self) -> list[str]:
        return list(self._subjects)


REGISTRY = Registry("orders-value", "orders-key")


@pytest.fixture
def propose_for(tmp_path: Path):
    """Return the pipeline of a sample, as the configuration reads it, and the evidence."""

    def proposed(formats, keys=(), registry=REGISTRY, document=None):
        counts = Counter(formats), Counter(dict(keys))
        documents, key_documents = ([{"a": 1}], [{"k": 1}]) if document is None else ([document], [document])
        topic = TopicSample(3, 10, *counts, documents=documents, key_documents=key_documents)
        request = Request("orders", "orders")
        proposal = propose(request, topic, registry)
        text = _pipeline_text(request, "local", "file:///lake", proposal)
        (tmp_path / "pipelines").mkdir(exist_ok=True)
        (tmp_path / "base.yaml").write_text(BASE)
        (tmp_path / "local.yaml").write_text("")
        (tmp_path / "pipelines" / "orders.yaml").write_text(text)
        assert "decode_key" not in yaml.safe_load(text)
        return load_settings("orders", {}, conf=tmp_path).pipeline, text

    return proposed


@pytest.mark.parametrize("value_format", ["avro", "json_schema", "protobuf", "json", "text"])
@pytest.mark.parametrize(
    ("sampled", "key"),
    [("text", "string"), ("json", "json"), ("binary", "binary"), ("none", "none")],
)
def test_each_clear_format_of_keys_is_proposed(propose_for, value_format, sampled, key):
    pipeline, _ = propose_for({value_format: 10}, {sampled: 9} | ({"avro": 1} if sampled != "none" else {}))
    assert pipeline.key == key
    assert pipeline.key_schema == ("`k` BIGINT" if key == "json" else None)


def test_objects_without_fields_have_a_column_to_edit(propose_for):
    pipeline, _ = propose_for({"json": 10}, {"json": 10}, document={})
    assert (pipeline.value_schema, pipeline.key_schema) == ("value STRING", "key STRING")


@pytest.mark.parametrize("key", ["avro", "json_schema", "protobuf"])
def test_keys_of_the_registry_are_proposed_for_values_of_the_registry(propose_for, key):
    assert propose_for({"avro": 10}, {key: 10})[0].key == key
    assert propose_for({"protobuf": 10}, {key: 10})[0].key == key
    for value_format in ("json", "text"):
        pipeline, text = propose_for({value_format: 10}, {key: 1})
        assert (pipeline.key, f"keys: {key}: 1" in text) == ("none", True)
    assert propose_for({"avro": 10}, {key: 10}, Registry("orders-value"))[0].key == "none"


@pytest.mark.parametrize("keys", [{"text": 5, "json": 5}, {"unknown_schema_id": 10}])
def test_keys_without_a_clear_format_are_counted_and_not_proposed(propose_for, keys):
    pipeline, text = propose_for({"avro": 10}, keys)
    assert pipeline.key == "none"
    assert all(f"{name}: {count}" in text for name, count in keys.items())


def test_a_relative_ca_file_is_found_from_the_folder_of_notebooks_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = Request(
        "orders", "orders", bootstrap="b:1", registry="https://r", into="s3a://b", ca_file="ca.pem"
    )
    ((_, text),) = _environment(tmp_path, "orders", request).items()
    sections = yaml.safe_load(text)
    assert sections["kafka"]["ca_file"] == sections["schema_registry"]["ca_file"] == f"{tmp_path}/ca.pem"


@pytest.mark.parametrize("other", ["binary", "unknown_schema_id", "json"])
def test_a_format_of_few_values_is_not_proposed(propose_for, other):
    with pytest.raises(ConfigError) as raised:
        propose_for({other: 499, "text": 1} if other != "json" else {other: 7, "text": 3})
    assert (raised.value.fields["topic"], raised.value.fields["reason"]) == ("orders", "mixed")


def test_values_that_say_nothing_do_not_count_against_a_format(propose_for):
    sampled = {"avro": 4, "binary": 1, "tombstone": 100, "unknown_schema_id": 100}
    assert propose_for(sampled)[0].value_format == "avro"


@pytest.mark.parametrize("value_format", ["avro", "avro without schema id", "json", "text"])
def test_each_key_has_a_comment_and_the_topic_its_partitions(propose_for, value_format):
    _, text = propose_for({value_format: 10}, {"json": 10})
    lines = text.splitlines()
    keys = [number for number, line in enumerate(lines) if not line.startswith("#")]
    assert all(lines[number - 1].startswith("# ") and lines[number - 1] != "# " for number in keys)
    assert "3 for now" in lines[lines.index("topic: orders") - 1]
