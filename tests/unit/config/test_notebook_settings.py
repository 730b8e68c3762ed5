"""Widgets and settings of a notebook, with the workbench's dbutils and with the stand-in of Databricks."""

import logging
from pathlib import Path

import pytest

from tests.notebooks import databricks_stand_in
from topiclake.config.notebook import KEYS, notebook_settings
from topiclake.errors import ConfigError
from workbench.dbutils import DBUtils
from workbench.dbutils.widgets import unused_parameters
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import widget_names

PROJECT = Path(__file__).parents[3]

BASE = """
kafka: {bootstrap_servers: "base:9092"}
schema_registry: {url: "http://base:8081"}
storage: {source: "file:///base", mount_point: /mnt/datalake}
pipelines:
  gps: {topic: gps, view: gps, table_path: /mnt/datalake/gps, checkpoint_path: /mnt/datalake/checkpoint}
  weather: {topic: weather, view: weather, table_path: /mnt/datalake/weather, checkpoint_path: /mnt/c2}
"""
SASL = """
kafka:
  security_protocol: SASL_SSL
  username: "{{secrets/scope/user}}"
  password: "{{secrets/scope/password}}"
"""


@pytest.fixture
def conf(tmp_path):
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "base.yaml").write_text(BASE)
    (folder / "local.yaml").write_text("")
    (folder / "azure.yaml").write_text(SASL)
    return folder


@pytest.fixture
def of_workbench(tmp_path):
    return lambda parameters: DBUtils(tmp_path / "home", tmp_path, parameters)


@pytest.fixture(params=["workbench", "databricks"])
def make(request, of_workbench):
    """Make dbutils of a run with these parameters."""
    return of_workbench if request.param == "workbench" else databricks_stand_in.DBUtils


@pytest.fixture
def ignored(caplog):
    """Return the lines of the log about parameters."""
    caplog.set_level(logging.INFO, "topiclake.config.notebook")
    return lambda: [record.getMessage().partition(": ")[2] for record in caplog.records]


def test_a_key_has_a_widget_whose_value_is_a_setting(make, conf, ignored):
    dbutils = make({"topic": "other", "mode": "FAILFAST"})
    settings = notebook_settings(dbutils, "topic", "mode", "storage", pipeline="gps", conf=conf)
    assert (settings.name, settings.env, settings.storage.source) == ("gps", "local", "file:///base")
    assert (settings.pipeline.topic, settings.pipeline.mode) == ("other", "FAILFAST")
    widgets = {"env": "from conf", "topic": "other", "mode": "FAILFAST", "storage": ""}
    assert dbutils.widgets.getAll() == widgets
    assert ignored() == []


def test_without_parameters_the_files_decide(make, conf):
    settings = notebook_settings(make({}), "topic", "mode", "storage", pipeline="weather", conf=conf)
    assert (settings.pipeline.topic, settings.pipeline.mode) == ("weather", "PERMISSIVE")


def test_a_widget_has_the_choices_of_its_key(of_workbench, conf):
    dbutils = of_workbench({})
    keys = ("mode", "resume", "starting_offsets", "kafka_fields", "type_widening", "storage")
    notebook_settings(dbutils, *keys, pipeline="gps", conf=conf, live=["no", "yes"], version="0")
    widgets = {name: (each.kind, each.choices) for name, each in dbutils.widgets._widgets.items()}
    assert widgets == {
        "env": ("combobox", ("from conf", "azure", "local")),
        "mode": ("dropdown", ("from conf", "PERMISSIVE", "FAILFAST")),
        "resume": ("dropdown", ("from conf", "checkpoint", "table", "restart")),
        "starting_offsets": ("text", ()),
        "kafka_fields": ("text", ()),
        "type_widening": ("text", ()),
        "storage": ("text", ()),
        "live": ("dropdown", ("no", "yes")),
        "version": ("text", ()),
    }


def test_a_keyword_is_a_setting_if_a_pipeline_has_that_key(make, conf, ignored):
    dbutils = make({"live": "yes"})
    settings = notebook_settings(
        dbutils, pipeline="gps", conf=conf, trigger="10 seconds", avro_form=["plain", "confluent"], live="no"
    )
    assert (settings.pipeline.trigger, settings.pipeline.avro_form) == ("10 seconds", "plain")
    assert dbutils.widgets.get("live") == "yes"
    assert ignored() == []


def test_a_parameter_that_the_notebook_does_not_declare_is_ignored_with_one_line(make, conf, ignored):
    dbutils = make({"topic": "other", "devices": "3", "table_path": "/elsewhere"})
    settings = notebook_settings(dbutils, "topic", pipeline="gps", conf=conf)
    assert (settings.pipeline.topic, settings.pipeline.table_path) == ("other", "/mnt/datalake/gps")
    assert ignored() == ["devices, table_path"]


def test_where_the_pipeline_is_a_parameter_each_of_its_keys_is(make, conf, ignored):
    dbutils = make({"pipeline": "weather", "tombstones": "skip", "view": "of_run", "devices": "3"})
    settings = notebook_settings(dbutils, "topic", pipeline=["gps"], conf=conf, view="of_notebook")
    assert (settings.name, settings.pipeline.tombstones) == ("weather", "skip")
    assert settings.pipeline.view == "of_run"
    assert ignored() == ["devices"]
    if isinstance(dbutils, DBUtils):
        assert unused_parameters(dbutils.widgets) == ["devices"]


def test_the_former_name_of_an_avro_key_is_a_parameter(make, conf):
    settings = notebook_settings(make({"decode_key": "true"}), pipeline=["gps"], conf=conf)
    assert settings.pipeline.key == "avro"
    assert "decode_key" in (widget_names(read_notebook(PROJECT / "notebooks" / "ingest.py")) or ())


def test_the_first_of_several_pipelines_is_the_default(make, conf):
    dbutils = make({})
    assert notebook_settings(dbutils, pipeline=["weather", "gps"], conf=conf).name == "weather"
    assert dbutils.widgets.getAll() == {"env": "from conf", "pipeline": "weather"}


def test_without_a_pipeline_those_of_conf_are_named(make, conf):
    with pytest.raises(ConfigError) as raised:
        notebook_settings(make({}), conf=conf)
    assert raised.value.fields["allowed"] == ("gps", "weather")


def test_the_environment_has_another_default_and_secrets_are_read(of_workbench, conf, monkeypatch):
    monkeypatch.setenv("TOPICLAKE_SECRET_SCOPE_USER", "me")
    settings = notebook_settings(of_workbench({}), pipeline="gps", env="azure", conf=conf)
    assert (settings.env, settings.kafka.username.reveal()) == ("azure", "me")


@pytest.mark.parametrize(
    ("key", "remedy"),
    [("tpoic", 'use "topic"'), ("env", 'add env="<its default>"'), ("live", 'add live="<its default>"')],
)
def test_an_unknown_key_is_named_with_those_that_are_allowed(make, conf, key, remedy):
    with pytest.raises(ConfigError) as raised:
        notebook_settings(make({}), "topic", key, pipeline="gps", conf=conf)
    assert raised.value.fields == {"parameter": key, "reason": "unknown", "allowed": tuple(sorted(KEYS))}
    assert raised.value.remedy.startswith(remedy)


def test_a_parameter_of_the_run_names_no_code(make, conf):
    with pytest.raises(ConfigError) as raised:
        notebook_settings(make({"deserializer": "os:system"}), pipeline=["gps"], conf=conf)
    assert raised.value.fields == {"parameter": "deserializer", "reason": "code"}
