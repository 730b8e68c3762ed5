"""Delta tables by name, in Spark's own catalog: created, written once, merged, read, described."""

from types import SimpleNamespace
from uuid import uuid4

import pytest
from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType
from pyspark.testing import assertDataFrameEqual

from tests.support.local_rows import local_rows
from topiclake.delta import catalog, driver_lock, log_store, merge
from topiclake.delta import table as delta
from topiclake.errors import IngestError, StorageError
from topiclake.ingest.quarantine import replay_claims

COLUMNS = "id INT, latitude DOUBLE"


@pytest.fixture
def name(catalog_schema):
    return f"{catalog_schema}.gps"


@pytest.fixture
def rows(spark):
    return local_rows(spark, [(1, 46.434981), (2, -0.1)], COLUMNS)


def append(rows, name, batch_id, **commit):
    attempt = uuid4().hex
    delta.append_once(rows, name, writer="gps/1", batch_id=batch_id, commit=commit | {"attempt": attempt})
    return delta.is_committed(rows.sparkSession, name, attempt)


def test_a_managed_table_is_created_with_columns_comment_and_properties(spark, name):
    assert (delta.is_table(spark, name), delta.columns(spark, name)) == (False, None)
    position = StructType().add("lat", "double", True, {"comment": "degrees\\"}).add("l-n", "double")
    columns = StructType().add("id", "integer", True, {"comment": 'it\'s a "device"'})
    columns = columns.add("position", position).add(
        "all", ArrayType(MapType(StringType(), DecimalType(9, 2)))
    )
    properties = {"delta.enableChangeDataFeed": "true", "topiclake.reader": '{"a": "it\'s"}'}
    for _ in range(2):
        delta.ensure_table(spark, name, columns, properties, 'the "table\'s" text')
    assert delta.is_table(spark, name)
    assert delta.columns(spark, name) == columns
    assert properties.items() <= delta.properties(spark, name).items()
    (detail,) = spark.sql(f"DESCRIBE DETAIL {catalog.identifier(name)}").collect()
    assert (detail["description"], detail["format"]) == ('the "table\'s" text', "delta")
    assert detail["location"] == catalog.folder(spark, name)
    assert delta.latest_version(spark, name) == 0


def test_a_repeated_batch_is_appended_once_and_the_first_one_creates_the_table(spark, rows, name):
    assert [append(rows, name, 0), append(rows, name, 1)] == [True, True]
    version = delta.latest_version(spark, name)
    assert [append(rows, name, 1), append(rows, name, 0)] == [False, False]
    assert delta.latest_version(spark, name) == version
    assertDataFrameEqual(delta.read(spark, name), rows.union(rows), rtol=0, atol=0)
    assert delta.read(spark, name, version - 1).count() == 2
    newer = local_rows(spark, [(3, 0.5, "new")], f"{COLUMNS}, note STRING")
    assert append(newer, name, 2)
    assert delta.columns(spark, name).names == ["id", "latitude", "note"]


@pytest.mark.thorough("a further use of a name, of three parts")
def test_a_batch_is_merged_once_by_its_keys(spark, rows, catalog_schema):
    name = f"spark_catalog.{catalog_schema}.gps"
    merge.merge_once(rows, name, ["id"], writer="q", batch_id=0)
    newer = local_rows(spark, [(2, 7.0, "x"), (3, 8.0, "y")], f"{COLUMNS}, note STRING")
    merge.merge_once(newer, name, ["id"], writer="q", batch_id=1)
    merge.merge_once(local_rows(spark, [(2, 0.0)], COLUMNS), name, ["id"], writer="q", batch_id=1)
    found = sorted(map(tuple, delta.read(spark, name).select("id", "latitude", "note").collect()))
    assert found == [(1, 46.434981, None), (2, 7.0, "x"), (3, 8.0, "y")]


def test_properties_are_set_and_the_remedy_names_the_table(spark, rows, name):
    append(rows, name, 0)
    delta.set_properties(spark, name, {delta.FORGETS_WRITERS: "interval 1 day"})
    with pytest.raises(StorageError) as raised:
        delta.require_lasting_writers(name, delta.properties(spark, name))
    assert raised.value.fields["table"] == name
    spark.sql(raised.value.remedy)
    assert delta.FORGETS_WRITERS not in delta.properties(spark, name)


def test_claims_of_a_table_that_had_a_path_need_a_name(spark, catalog_schema, tmp_path):
    quarantine, folder = f"{catalog_schema}.gps_quarantine", f"file:{tmp_path}/gps_quarantine"
    rows = spark.sql(
        "SELECT 'gps' AS topic, 0 AS partition, 7L AS offset, "
        "timestamp'2026-01-02 03:04:05' AS quarantined_at"
    )
    append(rows, folder, 0)
    replay_claims.claim(spark, folder, rows, "r1")
    spark.sql(f"CREATE TABLE {quarantine} USING delta LOCATION '{folder}'")
    with pytest.raises(IngestError) as raised:
        replay_claims.read(spark, quarantine)
    assert raised.value.fields["reason"] == "claims_without_name"
    spark.sql(raised.value.remedy)
    (row,) = replay_claims.read(spark, quarantine).collect()
    assert row["replay"] == "r1"


def test_an_external_table_that_the_user_has_created_is_written(spark, rows, catalog_schema, tmp_path):
    name, folder = f"{catalog_schema}.gps", f"file:{tmp_path}/gps"
    spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING delta LOCATION '{folder}'")
    append(rows, name, 0)
    assert catalog.folder(spark, name) == folder
    assertDataFrameEqual(delta.read(spark, folder), rows, rtol=0, atol=0)
    spark.sql(f"DROP TABLE {name}")
    assert delta.read(spark, folder).count() == 2


def test_a_table_of_a_missing_schema_is_refused_with_the_statement_to_create_it(spark, rows):
    name = f"nowhere_{uuid4().hex[:8]}.gps"
    schema = name.removesuffix(".gps")
    assert (delta.is_table(spark, name), delta.columns(spark, name)) == (False, None)
    for refused in (
        lambda: delta.ensure_table(spark, name, delta.nullable(rows), {}),
        lambda: append(rows, name, 0),
        lambda: log_store.require_log_store(spark, name),
    ):
        with pytest.raises(StorageError) as raised:
            refused()
        assert raised.value.fields == {"table": name, "schema": f"`{schema}`", "reason": "no_schema"}
        assert raised.value.remedy == f"CREATE SCHEMA `{schema}`"


def test_a_name_that_the_catalog_does_not_allow_is_refused(spark, rows, catalog_schema):
    with pytest.raises(StorageError) as raised:
        append(rows, f"{catalog_schema}.`gps-eu`", 0)
    assert raised.value.fields == {"table": f"{catalog_schema}.`gps-eu`", "reason": "table_name"}


def test_a_catalog_that_does_not_exist_is_refused(spark, rows, catalog_schema):
    with pytest.raises(StorageError) as raised:
        catalog.folder(spark, f"nowhere.{catalog_schema}.gps")
    assert raised.value.fields["reason"] in ("no_catalog", "no_schema")


def test_the_log_store_is_that_of_the_tables_folder(spark, catalog_schema, monkeypatch):
    """The lock is that of the path, so that a writer by path is refused as well."""
    name, locked = f"{catalog_schema}.gps", []
    monkeypatch.setattr(driver_lock, "acquire", lambda table, *_: locked.append(table))
    conf = SimpleNamespace(get=lambda *_: "io.delta.storage.HDFSLogStore")
    session = SimpleNamespace(conf=conf, catalog=spark.catalog, sql=spark.sql)
    log_store.require_log_store(session, name)
    assert locked == [catalog.folder(spark, name)]
    assert locked[0].startswith("file:")
    assert locked[0].endswith(f"/{catalog_schema}.db/gps")
    delta.ensure_table(spark, name, StructType.fromDDL(COLUMNS), {})
    assert catalog.folder(spark, name) == locked[0]
