import ast
import json
from pathlib import Path

import pytest

from topiclake.config.load import find_conf, first_pipeline, load_settings
from topiclake.config.secret import Secret
from topiclake.errors import ConfigError

PROJECT = Path(__file__).parents[3]

BASE = """
kafka:
  bootstrap_servers: base:9092
  consumer: {max.poll.records: 1, fetch.min.bytes: 2}
schema_registry:
  url: http://base:8081
storage:
  source: file:///base
  mount_point: /mnt/datalake
pipelines:
  gps:
    topic: gps
    view: gps
    table_path: /mnt/datalake/gps
    checkpoint_path: /mnt/datalake/checkpoint
  weather:
    topic: weather
    view: weather
    table_path: /mnt/datalake/weather
    checkpoint_path: /mnt/datalake/checkpoint2
"""
SASL = """
kafka:
  security_protocol: SASL_SSL
  username: "{{secrets/scope/user}}"
  password: "{{secrets/scope/pass-word}}"
storage:
  sas_token: "{{secrets/scope/sas}}"
"""
HIDDEN = "hunter2"


@pytest.fixture
def load(tmp_path):
    """Load the pipeline `gps` from BASE and a file local.yaml with the text given."""

    def loaded(local="", parameters=None, base=BASE, name="gps", **options):
        (tmp_path / "base.yaml").write_text(base)
        (tmp_path / "local.yaml").write_text(local)
        return load_settings(name, parameters or {}, conf=tmp_path, **options)

    return loaded


def refusal(load, *args, **options):
    with pytest.raises(ConfigError) as raised:
        load(*args, **options)
    assert type(raised.value) is ConfigError
    return raised.value


def refused(load, *args, **options):
    return str(refusal(load, *args, **options))


# Layers


def test_the_environment_comes_over_the_base(load):
    settings = load("kafka: {bootstrap_servers: 'local:9092'}")
    assert settings.kafka.bootstrap_servers == "local:9092"
    assert settings.schema_registry.url == "http://base:8081"


def test_sections_are_merged_key_by_key(load):
    settings = load("kafka: {consumer: {max.poll.records: 9}}")
    assert settings.kafka.consumer == {"max.poll.records": 9, "fetch.min.bytes": 2}
    assert settings.kafka.bootstrap_servers == "base:9092"


def test_parameters_come_over_both(load):
    local = "pipelines: {gps: {topic: of_env, mode: FAILFAST}}"
    assert load(local).pipeline.topic == "of_env"
    settings = load(local, {"topic": "of_widget"})
    assert (settings.pipeline.topic, settings.pipeline.mode) == ("of_widget", "FAILFAST")


def test_a_pipelines_file_comes_over_base_and_below_the_environment(load, tmp_path):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "gps.yaml").write_text("topic: of_file\nmode: FAILFAST\nview: of_file\n")
    (tmp_path / "pipelines" / "orders.yaml").write_text(
        "topic: orders\nview: orders\ntable_path: /t\ncheckpoint_path: /c\n"
    )
    settings = load("pipelines: {gps: {view: of_env}, orders: {mode: FAILFAST}}")
    found = settings.pipeline
    assert (found.topic, found.mode, found.view) == ("of_file", "FAILFAST", "of_env")
    assert found.table_path == "/mnt/datalake/gps"
    assert (
        load(
            name="orders",
            base="kafka: {bootstrap_servers: b:1}\nschema_registry: {url: http://r}\n"
            "storage: {source: file:///x, mount_point: /mnt/x}\n",
        ).pipeline.topic
        == "orders"
    )
    error = refusal(load, name="order")
    assert error.fields["allowed"] == ("gps", "orders", "weather")
    assert f"{tmp_path / 'pipelines' / 'order.yaml'}" in error.remedy


def test_what_is_wrong_in_a_pipelines_file_names_the_file(load, tmp_path):
    (tmp_path / "pipelines").mkdir()
    file = tmp_path / "pipelines" / "gps.yaml"
    for text in ("mode: DROPMALFORMED", "tpoic: gps", "topic: [", "just text"):
        file.write_text(text)
        assert str(file) in refusal(load).cause, text


@pytest.mark.parametrize("name", ["../local", "gps.yaml", "pipelines/gps", ""])
def test_a_pipelines_name_is_no_path(load, tmp_path, name):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "gps.yaml").write_text("topic: gps\n")
    assert refusal(load, name=name).fields["reason"] == "unknown"


def test_the_services_of_all_pipelines_are_read_by_the_first_one(load, tmp_path):
    load()
    assert first_pipeline(tmp_path) == "gps"
    (tmp_path / "base.yaml").write_text("kafka: {}\n")
    with pytest.raises(ConfigError, match="no pipeline is in") as raised:
        first_pipeline(tmp_path)
    assert raised.value.fields["reason"] == "no_pipeline"
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "orders.yaml").write_text("topic: orders\n")
    assert first_pipeline(tmp_path) == "orders"


def test_a_pipeline_with_a_pattern_needs_no_topic(load):
    source = load(
        "pipelines: {gps: {topic: null, topic_pattern: 'shop\\..*', table_path: '/mnt/lake/{topic}'}}"
    ).pipeline
    assert (source.topic, source.topics) == (r"shop\..*", ())
    assert source.has_several_topics
    assert source.reads("shop.a")
    assert not source.reads(source.topic)


def test_a_topic_that_is_named_comes_over_the_files_pattern(load):
    of_file = "pipelines: {gps: {topic_pattern: 'shop\\..*', table_path: '/mnt/lake/{topic}'}}"
    assert load(of_file).pipeline.topic_pattern == r"shop\..*"
    named = load(of_file, {"topic": "shop.a"})
    assert named.only_topic().pipeline.quarantine_path == "/mnt/lake/shop.a_quarantine"
    assert load(of_file, {"topic": "shop.a", "topic_pattern": "s.*"}).pipeline.topic_pattern == "s.*"
    several = load(of_file, {"topic": "shop.a,shop.b"})
    with pytest.raises(ConfigError, match=r"has several topics.*-p topic=<topic>") as raised:
        several.only_topic()
    assert raised.value.fields == {"pipeline": "gps"}


@pytest.mark.parametrize("unset", ["", "from conf"])
def test_an_unset_widget_leaves_the_files_value(load, unset):
    names = [
        "env",
        "topic",
        "mode",
        "trigger",
        "storage",
        "table_path",
        "checkpoint_path",
        "starting_offsets",
    ]
    settings = load("", dict.fromkeys(names, unset))
    assert settings.env == "local"
    assert settings.storage.source == "file:///base"
    assert settings.pipeline == load().pipeline


def test_a_list_may_be_given_with_commas_as_a_widget_has_it(load):
    given = {"kafka_fields": "partition, offset,topic", "record_names": "a.B"}
    pipeline = load(parameters=given).pipeline
    assert pipeline.kafka_fields == ("partition", "offset", "topic")
    assert pipeline.record_names == ("a.B",)
    wrong = refusal(load, parameters={"kafka_fields": "partition,line"})
    assert wrong.fields["parameter"].startswith("kafka_fields")


def test_values_that_are_no_avro_have_one_topic_and_one_table(load):
    for table_path in ("/mnt/lake/{topic}", "/mnt/lake/t"):
        given = {"value_format": "text", "table_path": table_path, "topic": "a"}
        if "{" in table_path:
            error = refusal(load, parameters=given)
            assert error.fields["reason"] == "wrong"
            assert "{topic} in table_path belongs to value_format avro, " in error.fields["expected"]
        else:
            assert load(parameters=given).pipeline.value_format == "text"


def test_values_with_schemas_of_the_registry_have_no_columns_in_the_configuration(load):
    for value_format in ("json_schema", "protobuf"):
        registered = {"value_format": value_format}
        require_no_columns(load, registered)


def require_no_columns(load, registered):
    assert load(parameters=registered).pipeline.subjects("value", topic="a") == ("a-value",)
    wrong = {"value_schema": "id INT", "timestamp_format": "yyyy", "avro_form": "plain"}
    for key, value in wrong.items():
        error = refusal(load, parameters=registered | {key: value})
        assert error.fields["reason"] == "wrong"
        assert f"{key} " in error.cause


def test_table_properties_are_a_parameter_as_json(load):
    given = {"table_properties": '{"delta.appendOnly": "true"}'}
    assert load(parameters=given).pipeline.table_properties == {"delta.appendOnly": "true"}
    for wrong in ("delta.appendOnly=true", "[1]"):
        error = refusal(load, parameters={"table_properties": wrong})
        assert (error.fields["parameter"], error.fields["reason"]) == ("table_properties", "wrong")


def test_environment_and_name_have_origins(tmp_path):
    conf = tmp_path / "conf"
    (conf / "pipelines").mkdir(parents=True)
    (conf / "base.yaml").write_text(BASE)
    (conf / "local.yaml").write_text("pipelines: {own: {mode: FAILFAST}}")
    (conf / "test.yaml").write_text("")
    own = conf / "pipelines" / "own.yaml"
    keys = "topic: a\nview: a\ntable_path: /mnt/a\ncheckpoint_path: /mnt/c\n"

    def origins(name="own", **parameters):
        settings = load_settings(name, parameters, conf=conf)
        return settings.env, settings.origins.get("env", "default"), settings.origins["name"]

    own.write_text(keys)
    assert origins() == ("local", "default", "conf/pipelines/own.yaml")
    assert origins("gps") == ("local", "default", "conf/base.yaml")
    own.write_text(keys + "env: test\n")
    assert origins() == ("test", "conf/pipelines/own.yaml", "conf/pipelines/own.yaml")
    assert origins(env="local") == ("local", "parameter", "conf/pipelines/own.yaml")


def test_the_former_name_of_an_avro_key_is_accepted_and_named(load, caplog):
    assert load(parameters={"decode_key": "true"}).pipeline.key == "avro"
    assert "decode_key: true is read as key: avro" in caplog.text
    assert load(parameters={"decode_key": "false"}).pipeline.key == load().pipeline.key == "none"
    for wrong in ({"decode_key": "perhaps"}, {"decode_key": "true", "key": "binary"}):
        assert "former name of key: avro" in refusal(load, parameters=wrong).cause


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"key": "text"}, "Input should be 'none', 'binary', 'string', 'avro', 'json'"),
        ({"key": "json"}, "key_schema belongs to key json, which needs it"),
        ({"key_schema": "id INT"}, "key_schema belongs to key json, which needs it"),
        ({"key": "avro", "value_format": "text"}, "key avro belongs to value_format avro, json_schema or"),
    ],
)
def test_a_key_that_does_not_fit_is_refused(load, given, cause):
    assert cause in refusal(load, parameters=given).cause


def upsert(load, changes="{keys: [id], deletes: none}", **others):
    keys = {"apply": "upsert", "changes": changes} | others
    text = ", ".join(f"{key}: {value}" for key, value in keys.items() if value is not None)
    return load(f"pipelines: {{gps: {{{text}}}}}").pipeline


def test_an_upsert_has_defaults_and_rules(load):
    pipeline = upsert(load, changes=None, key="avro")
    assert (pipeline.changes.envelope, pipeline.changes.keys, pipeline.changes.order) == ("none", (), ())
    assert (pipeline.changes.deletes, pipeline.changes.truncates) == ("tombstone", None)
    assert pipeline.keeps_tombstones
    pipeline = upsert(load, "{keys: 'id, line', ignore_null_updates: [name], deletes: \"op = 'd'\"}")
    assert pipeline.changes.keys == ("id", "line")
    assert pipeline.changes.ignore_null_updates == ("name",)
    assert not pipeline.keeps_tombstones
    assert upsert(load, "{envelope: debezium, keys: [id]}").keeps_tombstones
    assert upsert(load, tombstones="skip").tombstones == "skip"
    assert load().pipeline.changes is None
    assert load(parameters={"apply": "upsert", "key": "avro"}).pipeline.changes.keys == ()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"apply": "append"}, "apply upsert"),
        ({"changes": None}, "changes.keys"),
        ({"changes": "{keys: [id]}"}, "changes.deletes"),
        ({"changes": "{keys: [id], columns: [a], except_columns: [b]}"}, "except_columns"),
        ({"changes": "{keys: [id], deletes: none, truncates: a}"}, "order"),
        ({"changes": "{keys: [id], deletes: none, envelope: debezium}"}, "deletes"),
        ({"changes": "{keys: [id], sequence_by: a}"}, "allowed: columns"),
        ({"changes": "{keys: [id], deletes: none, scd_type: 2}"}, "order"),
        ({"changes": "{keys: [id], deletes: none, order: [at], scd_type: 3}"}, "scd_type"),
        ({"changes": "{keys: [id], deletes: none, order: [at], scd_type: 2, truncates: a}"}, "truncates"),
        (
            {"changes": "{keys: [id], deletes: none, order: [at], scd_type: 2, retention_days: 1}"},
            "retention",
        ),
        ({"changes": "{keys: [id], deletes: none, retention_days: -1}"}, "retention_days"),
        ({"changes": "{keys: [id], deletes: none, order: [at], history_columns: [a]}"}, "scd_type 2"),
        (
            {
                "changes": "{keys: [id], deletes: none, order: [at], scd_type: 2, history_columns: [a], "
                "except_history_columns: [b]}"
            },
            "except_history_columns",
        ),
        ({"changes": "{order: [at]}", "key": "avro"}, "changes.order at"),
        ({"kafka_column": "false"}, "kafka_fields"),
        ({"kafka_fields": "offset"}, "kafka_fields"),
        ({"tombstones": "keep"}, "tombstones keep"),
        ({"changes": "{envelope: debezium, keys: [id]}", "tombstones": "skip"}, "tombstones skip"),
        ({"resume": "table"}, "resume"),
        ({"table_properties": "{delta.appendOnly: 'true'}"}, "delta.appendOnly"),
        ({"table_properties": "{DELTA.APPENDONLY: 'TRUE'}"}, "delta.appendOnly"),
    ],
)
def test_rules_of_an_upsert_that_contradict_each_other_are_refused(load, given, named):
    with pytest.raises(ConfigError) as raised:
        upsert(load, **given)
    assert raised.value.fields["reason"] in ("wrong", "unknown")
    assert named in raised.value.cause


def test_the_state_has_a_section_of_its_own_and_no_other_keys(load):
    state = load().state
    assert (state.partitions, state.memory_mb) == (None, 256)
    assert load("state: {partitions: 4}").state.partitions == 4
    for wrong in ("provider: RocksDB", "partitions: 0", "memory_mb: 1"):
        error = refusal(load, f"state: {{{wrong}}}")
        assert error.fields["key"] == f"state.{wrong.split(':')[0]}"
        assert error.fields["reason"] == ("unknown" if wrong.startswith("provider") else "wrong")


def test_a_table_that_would_forget_its_writers_is_refused(load):
    properties = (
        "pipelines: {gps: {table_properties: {delta.SetTransactionRetentionDuration: interval 7 days}}}"
    )
    assert "table_properties must not hold delta.setTransactionRetentionDuration" in refused(load, properties)


def test_custom_values_need_a_schema_and_a_deserializer_by_name(load):
    given = {"value_format": "custom", "value_schema": "id INT", "deserializer": "a.b:read"}

    def file(**changed):
        return json.dumps({"pipelines": {"gps": given | changed}})

    assert load(file()).pipeline.deserializer == "a.b:read"
    for key in ("value_schema", "deserializer"):
        assert f"{key} belongs to" in refused(load, file(**{key: None}))
    assert "deserializer belongs to" in refused(load, file(value_format="json"))
    assert "deserializer" in refused(load, file(deserializer="__import__('os')"))


@pytest.mark.parametrize("key", ["deserializer", "deserializer_config", "changes"])
def test_what_loads_code_is_no_parameter(load, key):
    error = refusal(load, parameters={key: "os:system"})
    assert error.fields == {"parameter": key, "reason": "code"}


def test_the_parameter_storage_is_the_mounts_source(load):
    settings = load("", {"storage": "file:///other"})
    assert settings.storage.source == "file:///other"
    assert settings.storage.mount_point == "/mnt/datalake"


def test_a_wrong_parameter_storage_is_told_as_the_parameter(load):
    error = refusal(load, "", {"storage": "gs://b/x"})
    assert error.fields.items() >= {"parameter": "storage", "reason": "wrong", "found": "'gs://b/x'"}.items()
    assert error.fields["expected"].startswith("must be one of file:///<folder>, ")
    assert error.cause.startswith("parameter storage ")
    assert "-p storage=<an allowed value>" in error.remedy


def test_the_quarantine_table_stands_beside_the_table(load):
    assert load().pipeline.quarantine_path == "/mnt/datalake/gps_quarantine"
    assert load("", {"table_path": "/mnt/d/x/"}).pipeline.quarantine_path == "/mnt/d/x_quarantine"


def test_each_run_has_its_own_id(load):
    assert load().run_id != load().run_id


def test_settings_cannot_be_changed(load):
    with pytest.raises(ValueError, match="frozen"):
        load().pipeline.topic = "other"


# What is wrong is named


def test_an_unknown_key_is_named_with_its_file_and_those_allowed(load, tmp_path):
    error = refusal(load, "kafka: {bootstrap_server: 'x:1'}")
    allowed = error.fields.pop("allowed")
    assert error.fields == {
        "key": "kafka.bootstrap_server",
        "files": (str(tmp_path / "base.yaml"), str(tmp_path / "local.yaml")),
        "reason": "unknown",
    }
    assert allowed[:5] == ("aws_region", "bootstrap_servers", "ca_file", "client_certificate", "consumer")
    assert ", ".join(allowed) in error.cause


def test_an_unknown_section_is_named_with_those_allowed(load):
    error = refusal(load, "kafkaa: {}")
    assert (error.fields["key"], error.fields["reason"]) == ("kafkaa", "unknown")
    assert error.fields["allowed"][:4] == ("database", "kafka", "lineage", "pipeline")


def test_an_unknown_parameter_is_named_with_those_allowed(load):
    error = refusal(load, "", {"topics": "gps"})
    allowed = error.fields.pop("allowed")
    assert error.fields == {"parameter": "topics", "reason": "unknown"}
    assert allowed[:3] == ("apply", "assign", "automatic_replay")
    assert allowed[-4:] == ("value_format", "value_schema", "view", "wait_for_topic")
    assert ", ".join(allowed) in error.cause


@pytest.mark.parametrize(
    ("key", "base"),
    [
        ("kafka.bootstrap_servers", BASE.replace("bootstrap_servers: base:9092", "sasl_mechanism: PLAIN")),
        ("schema_registry", BASE.replace("schema_registry:\n  url: http://base:8081\n", "")),
        ("storage.mount_point", BASE.replace("mount_point: /mnt/datalake", "sas_token:")),
        ("pipeline.topic", BASE.replace("    topic: gps\n", "")),
    ],
)
def test_a_missing_key_is_named_with_the_file_that_needs_it(load, key, base, tmp_path):
    error = refusal(load, base=base)
    file = "base.yaml" if key == "pipeline.topic" else "local.yaml"
    assert error.remedy == f"add {key.removeprefix('pipeline.')} to {tmp_path / file}"
    assert error.fields == {
        "key": key,
        "files": (str(tmp_path / "base.yaml"), str(tmp_path / "local.yaml")),
        "reason": "missing",
    }


@pytest.mark.parametrize(
    ("local", "key", "found"),
    [
        ("kafka: {security_protocol: TLS}", "kafka.security_protocol", "'TLS'"),
        ("kafka: {bootstrap_servers: [a, b]}", "kafka.bootstrap_servers", "['a', 'b']"),
        ("kafka: {bootstrap_servers: ''}", "kafka.bootstrap_servers", "''"),
        ("schema_registry: {url: 'localhost:8081'}", "schema_registry.url", "'localhost:8081'"),
        ("storage: {mount_point: /datalake}", "storage.mount_point", "'/datalake'"),
        ("pipelines: {gps: {mode: DROPMALFORMED}}", "pipeline.mode", "'DROPMALFORMED'"),
        ("pipelines: {gps: {max_offsets_per_trigger: 0}}", "pipeline.max_offsets_per_trigger", "0"),
        ("pipelines: {gps: {kafka_column: maybe}}", "pipeline.kafka_column", "'maybe'"),
        ("pipelines: {gps: {view: 'a b'}}", "pipeline.view", "'a b'"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_shown(load, local, key, found):
    error = refusal(load, local)
    assert error.fields.items() >= {"key": key, "reason": "wrong", "found": found}.items()
    assert f"(found {found})" in error.cause


def test_a_wrong_parameter_is_called_a_parameter(load):
    error = refusal(load, "", {"mode": "LOUD"})
    assert error.fields == {
        "parameter": "mode",
        "reason": "wrong",
        "found": "'LOUD'",
        "expected": "Input should be 'PERMISSIVE' or 'FAILFAST'",
    }
    assert error.cause.startswith("parameter mode ")
    assert "-p mode=<an allowed value>" in error.remedy


def test_an_unknown_environment_names_those_that_exist(load, tmp_path):
    (tmp_path / "azure.yaml").write_text("")
    (tmp_path / "secrets.yaml").write_text("")
    error = refusal(load, "", {"env": "prod"})
    file = str(tmp_path / "prod.yaml")
    assert error.fields == {"file": file, "reason": "missing", "allowed": ("azure", "local")}
    assert file in error.cause
    assert "azure, local" in error.cause


@pytest.mark.parametrize(
    ("version", "env"), [("18.2", "databricks"), ("client.5.0", "databricks"), ("", "local")]
)
def test_the_default_environment_is_that_of_the_platform(load, tmp_path, monkeypatch, version, env):
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    if version:
        monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", version)
    (tmp_path / "databricks.yaml").write_text("")
    assert load("").env == env
    assert load("", {"env": "local"}).env == "local"


def test_a_missing_default_environment_is_named(load, monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.2")
    error = refusal(load, "")
    assert error.fields["file"].endswith("databricks.yaml")


def test_an_unknown_pipeline_names_those_that_exist(load, tmp_path):
    error = refusal(load, name="gsp")
    assert error.fields == {"pipeline": "gsp", "reason": "unknown", "allowed": ("gps", "weather")}
    assert f"'gsp' is not in {tmp_path}" in error.cause
    assert "gps, weather" in error.cause


@pytest.mark.parametrize("base", ["pipelines:\n", "kafka: {}\n", ""])
def test_files_without_pipelines_say_so(load, base):
    error = refusal(load, base=base)
    assert error.fields == {"pipeline": "gps", "reason": "unknown", "allowed": ()}
    assert "there are: none" in error.cause


@pytest.mark.parametrize(
    "section", ["pipelines: {gps: }", "pipelines: {gps: text}", "storage:", "kafka: text"]
)
def test_a_section_without_keys_is_an_error_of_ours(load, section):
    refused(load, section, {"storage": "file:///x", "topic": "t"})


def test_broken_yaml_names_file_and_line(load, tmp_path):
    error = refusal(load, "kafka:\n  a: 1\n b: 2\n")
    file = str(tmp_path / "local.yaml")
    assert error.fields == {"file": file, "line": 3, "reason": "no_yaml"}
    assert f"{file}, line 3" in error.cause


def test_broken_yaml_does_not_show_the_line(load):
    text = refused(load, f'kafka:\n  password: "{HIDDEN}\n')
    assert HIDDEN not in text
    assert "line" in text


def test_a_file_that_is_a_list_is_refused(load, tmp_path):
    file = str(tmp_path / "local.yaml")
    assert refusal(load, "- a\n").fields == {"file": file, "reason": "no_mapping", "found": "list"}


# Environment variables


def test_a_variable_is_expanded(load, monkeypatch):
    monkeypatch.setenv("TL_HOST", "h1")
    monkeypatch.setenv("TL_PORT", "9")
    settings = load("kafka: {bootstrap_servers: '${TL_HOST}:${TL_PORT},x:${TL_PORT}'}")
    assert settings.kafka.bootstrap_servers == "h1:9,x:9"


def test_an_unset_variable_is_named_with_key_file_and_remedy(load, tmp_path, monkeypatch):
    monkeypatch.delenv("TL_HOST", raising=False)
    error = refusal(load, "kafka: {bootstrap_servers: '${TL_HOST}'}")
    assert error.fields == {
        "key": "kafka.bootstrap_servers",
        "files": (str(tmp_path / "base.yaml"), str(tmp_path / "local.yaml")),
        "variable": "TL_HOST",
        "reason": "unset_variable",
    }
    assert error.remedy.startswith("export TL_HOST=")


def test_an_unset_variable_of_the_base_names_that_file(load, tmp_path, monkeypatch):
    monkeypatch.delenv("TL_HOST", raising=False)
    text = refused(load, base=BASE.replace("base:9092", "${TL_HOST}"))
    assert str(tmp_path / "base.yaml") in text


def test_an_unset_variable_of_the_workbench_names_the_command_that_sets_it(load, monkeypatch):
    monkeypatch.delenv("WORKBENCH_KAFKA", raising=False)
    assert "python -m workbench run" in refused(load, "kafka: {bootstrap_servers: '${WORKBENCH_KAFKA}'}")


@pytest.mark.parametrize(("default", "expected"), [("d:1", "d:1"), ("http://a/b-c", "http://a/b-c")])
def test_a_default_stands_in_for_an_unset_variable(load, monkeypatch, default, expected):
    local = f"kafka: {{bootstrap_servers: '${{TL_HOST:-{default}}}'}}"
    monkeypatch.delenv("TL_HOST", raising=False)
    assert load(local).kafka.bootstrap_servers == expected
    monkeypatch.setenv("TL_HOST", "set:1")
    assert load(local).kafka.bootstrap_servers == "set:1"


def test_a_variable_that_another_layer_replaces_is_not_needed(load, monkeypatch):
    monkeypatch.delenv("TL_HOST", raising=False)
    settings = load("storage: {source: '${TL_HOST}'}", {"storage": "file:///given"})
    assert settings.storage.source == "file:///given"


# Secrets


def test_a_secret_is_read_when_it_is_used(load):
    asked = []

    def read(scope, key):
        asked.append((scope, key))
        return HIDDEN

    settings = load(SASL, secrets=read)
    assert asked == []
    assert settings.kafka.password.reveal() == HIDDEN
    assert asked == [("scope", "pass-word")]


def test_a_secret_is_never_shown(load):
    settings = load(SASL, secrets=lambda scope, key: HIDDEN)
    settings.kafka.password.reveal()
    shown = [
        repr(settings),
        str(settings),
        settings.model_dump_json(),
        str(settings.model_dump()),
        repr(settings.kafka.password),
        f"{settings.kafka.password}",
    ]
    assert all(HIDDEN not in text for text in shown)
    assert (
        json.loads(settings.model_dump_json())["kafka"]["password"] == "Secret(scope/pass-word, [REDACTED])"
    )


@pytest.mark.parametrize(
    "local",
    [
        f"kafka: {{password: {HIDDEN}}}",
        f"kafka: {{username: {HIDDEN}}}",
        f"kafka: {{password: {{value: {HIDDEN}}}}}",
        f"kafka: {{password: '{{{{secrets/scope}}}}{HIDDEN}'}}",
        f"schema_registry: {{password: {HIDDEN}}}",
        f"storage: {{sas_token: '?sv=1&sig={HIDDEN}'}}",
    ],
)
def test_a_literal_secret_is_refused_and_not_shown(load, local):
    error = refusal(load, local)
    assert (error.fields["reason"], error.fields["found"]) == ("wrong", "[REDACTED]")
    assert "must be a reference {{secrets/<scope>/<key>}}" in error.fields["expected"]
    assert HIDDEN not in f"{error} {error.fields}"


def test_a_literal_secret_under_a_wrong_key_is_not_shown(load):
    error = refusal(load, f"kafka: {{pasword: {HIDDEN}}}")
    assert HIDDEN not in f"{error} {error.fields}"


def test_a_secret_from_an_environment_variable_is_refused_too(load, monkeypatch):
    monkeypatch.setenv("TL_PASSWORD", HIDDEN)
    error = refusal(load, "kafka: {password: '${TL_PASSWORD}'}")
    assert HIDDEN not in f"{error} {error.fields}"


def test_a_secret_without_a_reader_says_what_to_pass(load):
    password = load(SASL).kafka.password
    with pytest.raises(ConfigError, match=r"secrets=dbutils\.secrets\.get") as raised:
        password.reveal()
    assert raised.value.fields == {"secret": "scope/pass-word"}


def test_a_secret_has_a_name():
    assert Secret("scope", "key", None).name == "scope/key"


# Offsets and triggers


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_starting_offsets_may_be_a_word(load, word):
    assert load("", {"starting_offsets": word}).pipeline.starting_offsets == word


def test_starting_offsets_may_be_kafkas_json(load):
    settings = load("", {"starting_offsets": '{"gps": {"0": 23, "1": -2}}'})
    assert settings.pipeline.starting_offsets == {"gps": {"0": 23, "1": -2}}
    local = "pipelines: {gps: {starting_offsets: {gps: {'0': 23}}}}"
    assert load(local).pipeline.starting_offsets == {"gps": {"0": 23}}


@pytest.mark.parametrize("text", ["first", "{", '{"gps": {"0": 1}', "'earliest'"])
def test_starting_offsets_that_are_no_json_show_an_example(load, text):
    message = refused(load, "", {"starting_offsets": text})
    assert message.startswith("parameter starting_offsets is wrong: must be earliest, latest or JSON like")
    assert f"(found {text!r})" in message


@pytest.mark.parametrize(
    "text", ["5", "[]", '{"gps": 1}', '{"gps": {"0": "x"}}', '{"gps": {"0": 1.5}}', "null"]
)
def test_starting_offsets_of_another_form_are_refused(load, text):
    error = refusal(load, "", {"starting_offsets": text})
    assert (error.fields["parameter"], error.fields["reason"]) == ("starting_offsets", "wrong")


@pytest.mark.parametrize("text", ['{"tracks": {"0": 1}}', "{}", '{"gps": {"0": 1}, "tracks": {"0": 1}}'])
def test_starting_offsets_must_be_those_of_the_topic(load, text):
    assert "must be those of topic gps alone" in refused(load, "", {"starting_offsets": text})


def test_starting_offsets_follow_the_topic_of_the_parameters(load):
    offsets = '{"tracks": {"0": 1}}'
    settings = load("", {"topic": "tracks", "starting_offsets": offsets})
    assert settings.pipeline.starting_offsets == {"tracks": {"0": 1}}
    assert "topic tracks" in refused(load, "", {"topic": "tracks", "starting_offsets": '{"gps": {"0": 1}}'})


@pytest.mark.parametrize("trigger", ["availableNow", "1 second", "10 seconds", "5 minutes", "1 hour"])
def test_a_trigger_is_available_now_or_an_interval(load, trigger):
    assert load("", {"trigger": trigger}).pipeline.trigger == trigger


@pytest.mark.parametrize("trigger", ["availablenow", "10", "10s", "ten seconds", "10 seconds\n", "once"])
def test_another_trigger_is_refused(load, trigger):
    error = refusal(load, "", {"trigger": trigger})
    assert error.fields == {
        "parameter": "trigger",
        "reason": "wrong",
        "found": repr(trigger),
        "expected": "must be availableNow or an interval such as '10 seconds'",
    }


# Where the files are


def test_conf_is_found_from_a_folder_below(tmp_path):
    below = tmp_path / "notebooks" / "deep"
    below.mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "base.yaml").write_text("")
    assert find_conf(below) == tmp_path / "conf"
    assert find_conf(tmp_path) == tmp_path / "conf"


def test_the_nearest_conf_wins_and_one_without_base_does_not_count(tmp_path):
    for folder in ("conf", "a/conf", "a/b/conf"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "conf" / "base.yaml").write_text("")
    (tmp_path / "a" / "conf" / "base.yaml").write_text("")
    assert find_conf(tmp_path / "a" / "b") == tmp_path / "a" / "conf"


def test_no_conf_anywhere_is_named_with_the_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"no conf/base\.yaml") as raised:
        find_conf(tmp_path)
    assert raised.value.fields == {"path": str(tmp_path)}


def test_conf_is_found_from_the_working_directory(tmp_path, monkeypatch, load):
    load()
    folder = tmp_path / "conf"
    folder.mkdir()
    for name in ("base.yaml", "local.yaml"):
        (tmp_path / name).rename(folder / name)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert load_settings("gps", {}).kafka.bootstrap_servers == "base:9092"


# The project's own files


@pytest.mark.parametrize("env", ["local", "azure", "databricks"])
def test_the_projects_environments_load(monkeypatch, env):
    monkeypatch.setenv("WORKBENCH_KAFKA", "localhost:1")
    monkeypatch.setenv("WORKBENCH_SCHEMA_REGISTRY", "http://localhost:2")
    monkeypatch.setenv("WORKBENCH_DATALAKE", "file:///tmp/lake")
    monkeypatch.setenv("TOPICLAKE_KAFKA", "cloud:9092")
    monkeypatch.setenv("TOPICLAKE_SCHEMA_REGISTRY", "https://registry")
    monkeypatch.setenv("TOPICLAKE_STORAGE", "wasbs://c@a.blob.core.windows.net/f")
    settings = load_settings("gps", {"env": env}, conf=PROJECT / "conf")
    assert settings.kafka.is_sasl is (env != "local")
    consumer = settings.kafka.consumer
    assert consumer["max.poll.records"] == 20000
    # Spark keeps the last fetch of 64 partitions in memory.
    assert 64 * consumer["max.partition.fetch.bytes"] <= 256 * 1024**2


def undescribed(source):
    """Return the options with a default that have no comment of their own."""
    lines = source.split("\n")
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    fields = [node for of in classes for node in of.body if isinstance(node, ast.AnnAssign) and node.value]
    bare = [field for field in fields if not lines[field.lineno - 2].lstrip().startswith("#: ")]
    return {ast.unparse(field.target) for field in bare}


def test_each_option_says_when_to_change_it():
    files = sorted((PROJECT / "src" / "topiclake" / "config").glob("*.py"))
    assert undescribed("class A:\n    #: Set it.\n    a: int = 1\n    b: int = 2\n") == {"b"}
    # The comments above the options of which these are halves are for both.
    halves = {"password", "secret_key", "max_trigger_delay"}
    assert set().union(*(undescribed(file.read_text("utf-8")) for file in files)) <= halves
