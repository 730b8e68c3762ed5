"""Tables by name: which locations are names, and what a configuration may say of them."""

import pytest

from topiclake.config import table_name
from topiclake.config.load import load_settings
from topiclake.errors import ConfigError

BASE = """
kafka: {bootstrap_servers: "b:1"}
schema_registry: {url: "http://r"}
storage: {source: "file:///lake", mount_point: /mnt/datalake}
pipelines:
  gps: {topic: gps, view: gps, table: lake.raw.gps, checkpoint_path: /mnt/datalake/c}
"""


@pytest.fixture
def load(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "local.yaml").write_text("")
    return lambda **given: load_settings("gps", given, conf=tmp_path)


@pytest.fixture
def pipeline(load):
    return lambda **given: load(**given).pipeline


@pytest.mark.parametrize("location", ["raw.gps", "lake.raw.gps", "`my-lake`.raw.`g``ps`", "lake.raw.{topic}"])
def test_two_or_three_identifiers_are_a_name(location):
    assert table_name.is_name(location)


@pytest.mark.parametrize(
    "location",
    [
        "gps",
        "a.b.c.d",
        "/mnt/lake/raw.gps",
        "./raw.gps",
        "dbfs:/a.b",
        "s3a://b/a.b",
        "raw.",
        "my-lake.gps",
        "",
    ],
)
def test_other_locations_are_paths(location):
    assert not table_name.is_name(location)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("`raw`.`gps`", "raw.gps"), ("lake.`my-raw`.gps", "lake.`my-raw`.gps"), ("raw.`1st`", "raw.`1st`")],
)
def test_a_name_has_backticks_only_where_they_are_needed(given, expected):
    assert table_name.check_name(given) == expected
    assert table_name.check_name(expected) == expected


@pytest.mark.parametrize(
    ("location", "topic", "expected"),
    [
        ("lake.raw.{topic}", "gps", "lake.raw.gps"),
        ("lake.raw.{topic}_quarantine", "gps-eu", "lake.raw.`gps-eu_quarantine`"),
        ("lake.raw.t_{topic}", "2nd", "lake.raw.t_2nd"),
        ("/lake/{topic}/x", "shop.orders", "/lake/shop.orders/x"),
    ],
)
def test_the_name_of_a_topic_becomes_an_identifier(location, topic, expected):
    assert table_name.for_topic(location, topic) == expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [("raw.gps", "raw.gps_x"), ("raw.`g-s`", "raw.`g-s_x`"), ("/lake/gps/", "/lake/gps_x")],
)
def test_a_suffix_is_part_of_the_name_or_of_the_folder(location, expected):
    assert table_name.suffixed(location, "_x") == expected


def test_the_table_is_found_by_its_quarantine():
    assert table_name.without_suffix("lake.`gps-eu_quarantine`", "_quarantine") == "lake.`gps-eu`"
    assert table_name.without_suffix("/lake/gps_quarantine", "_quarantine") == "/lake/gps"
    assert table_name.without_suffix("lake.gps", "_quarantine") is None
    assert table_name.without_suffix("/lake/gps", "_quarantine") is None


def test_spellings_of_a_name_are_one_table():
    assert table_name.folded("Lake.`GPS`") == table_name.folded("spark_catalog.lake.gps")
    assert table_name.folded("/lake/GPS") != table_name.folded("/lake/gps")


def test_each_part_is_quoted_for_sql_and_plain_for_people():
    assert table_name.quoted("lake.raw.`g``p-s`") == "`lake`.`raw`.`g``p-s`"
    assert table_name.schema_of("lake.raw.gps") == "`lake`.`raw`"
    assert table_name.table_of("lake.raw.`g-s`") == "g-s"
    assert table_name.unquoted("lake.raw.`g-s`") == "lake.raw.g-s"


def test_the_quarantine_has_a_name_next_to_that_of_the_table(pipeline):
    found = pipeline()
    assert (found.location, found.quarantine_path) == ("lake.raw.gps", "lake.raw.gps_quarantine")
    assert found.table_path is None
    assert not found.has_table_for_each


def test_a_parameter_takes_the_place_of_the_other_key(pipeline):
    assert pipeline(table_path="/mnt/datalake/gps").location == "/mnt/datalake/gps"
    assert pipeline(table="`raw`.gps").location == "raw.gps"


def test_an_environment_may_have_a_path_in_place_of_the_name(pipeline, tmp_path):
    (tmp_path / "prod.yaml").write_text("pipelines: {gps: {table_path: /mnt/datalake/gps}}")
    assert pipeline(env="prod").location == "/mnt/datalake/gps"
    assert pipeline(env="prod", table="raw.gps").location == "raw.gps"


def test_each_of_several_topics_has_a_named_table(load):
    several = load(topic="a,b", table="lake.raw.{topic}")
    assert several.pipeline.has_table_for_each
    one = several.for_topic("b").pipeline
    assert (one.table, one.table_path, one.quarantine_path) == (
        "lake.raw.b",
        None,
        "lake.raw.b_quarantine",
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"table": "gps"}, "must be <schema>.<table> or <catalog>.<schema>.<table>"),
        ({"table": "/mnt/datalake/gps"}, "must be <schema>.<table>"),
        ({"table": "raw.`a.b`"}, "no dot, slash or space"),
        ({"table": "delta.`/mnt/x`"}, "no dot, slash or space"),
        ({"table": "{topic}.gps"}, "{topic} belongs into its last part"),
        ({"table_path": "lake.raw.gps"}, "set table: lake.raw.gps"),
        ({"topic": "a,b"}, "table must hold {topic}"),
        ({"topic": "a,b", "table_path": "/mnt/t"}, "table_path must hold {topic}"),
        ({"topic": "a.b,c", "table": "raw.{topic}"}, "topic a.b has a dot"),
        ({"topic": "a,A", "table": "raw.{topic}"}, "topics differ only in case"),
    ],
)
def test_what_cannot_be_a_table_is_refused_with_the_reason(pipeline, given, expected):
    with pytest.raises(ConfigError) as raised:
        pipeline(**given)
    assert expected in raised.value.fields["expected"]


@pytest.mark.parametrize("keys", ["", "table: raw.gps\n    table_path: /mnt/datalake/gps\n    "])
def test_one_of_both_keys_is_needed(tmp_path, keys):
    text = f"pipelines:\n  gps:\n    {keys}topic: gps\n    view: gps\n    checkpoint_path: /c\n"
    (tmp_path / "base.yaml").write_text(BASE.partition("pipelines:")[0] + text)
    (tmp_path / "local.yaml").write_text("")
    with pytest.raises(ConfigError) as raised:
        load_settings("gps", {}, conf=tmp_path)
    assert raised.value.fields["expected"] == "needs either table or table_path"
