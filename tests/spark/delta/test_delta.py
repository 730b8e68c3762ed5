import json
import shutil
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import IntegerType, StructType
from pyspark.testing import assertDataFrameEqual

from tests.support.local_rows import local_rows
from topiclake.delta import table as delta
from topiclake.errors import StorageError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "table")


@pytest.fixture
def rows(spark):
    return local_rows(spark, [(1, 46.434981), (2, -0.1)], "id INT, latitude DOUBLE")


def append(rows, path, batch_id, writer="gps/1", **commit):
    attempt = uuid4().hex
    commit |= {"attempt": attempt}
    delta.append_once(rows, path, writer=writer, batch_id=batch_id, commit=commit)
    return delta.is_committed(rows.sparkSession, path, attempt)


def test_a_batch_that_is_repeated_is_appended_once(spark, rows, path):
    assert [append(rows, path, 0), append(rows, path, 1)] == [True, True]
    version = delta.latest_version(spark, path)
    assert [append(rows, path, 1), append(rows, path, 0)] == [False, False]
    assert delta.latest_version(spark, path) == version
    assertDataFrameEqual(delta.read(spark, path), rows.union(rows), rtol=0, atol=0)


def test_a_column_of_another_type_is_refused_and_nothing_is_written(spark, rows, path):
    append(rows, path, 0)
    with pytest.raises(AnalysisException):
        append(
            spark.createDataFrame([("x", {"a": 1})], "id INT, latitude MAP<STRING, INT>", verifySchema=False),
            path,
            1,
        )
    assert delta.latest_version(spark, path) == 0


def test_the_history_names_version_rows_and_what_was_committed(spark, rows, path):
    append(rows, path, 0, run="r0", schema_ids=[1, 2])
    append(rows.limit(1), path, 1, run="r1", note='"quoted", ünïcode')
    history = delta.history(spark, path)
    assert [(row["version"], row["operation"], row["rows"]) for row in history.collect()] == [
        (1, "WRITE", 1),
        (0, "WRITE", 2),
    ]
    notes = [json.loads(row["batch"]) for row in history.collect()]
    assert len({note.pop("attempt") for note in notes}) == 2
    assert notes == [
        {"writer": "gps/1", "batch_id": 1, "run": "r1", "note": '"quoted", ünïcode'},
        {"writer": "gps/1", "batch_id": 0, "run": "r0", "schema_ids": [1, 2]},
    ]
    types = [(field.name, field.dataType.simpleString()) for field in history.schema]
    assert types == [
        ("version", "bigint"),
        ("timestamp", "timestamp"),
        ("operation", "string"),
        ("rows", "bigint"),
        ("batch", "string"),
    ]


def test_the_commit_of_a_batch_is_found_by_writer_and_batch(spark, rows, path):
    assert delta.commit_of(spark, path, writer="gps/1", batch_id=0) is None
    for batch_id in range(2):
        append(rows, path, batch_id, schemas={"value": [batch_id]})
    rows.write.format("delta").mode("append").option("userMetadata", "not JSON").save(path)
    found = delta.commit_of(spark, path, writer="gps/1", batch_id=1)
    assert found["schemas"] == {"value": [1]}
    assert delta.commit_of(spark, path, writer="gps/1", batch_id=2) is None
    assert delta.commit_of(spark, path, writer="gps/2", batch_id=1) is None


def test_a_comment_shows_no_variable_of_the_driver(spark, path):
    columns = StructType().add(
        "id", IntegerType(), metadata={"comment": "${env:PATH} it's ${spark.app.name}"}
    )
    delta.ensure_table(spark, path, columns, {"topiclake.test": "${env:PATH}"}, comment="${system:user.name}")
    (field,) = delta.read(spark, path).schema
    assert field.metadata["comment"] == "${env:PATH} it's ${spark.app.name}"
    assert delta.properties(spark, path)["topiclake.test"] == "${env:PATH}"
    described = detail(spark, path)
    assert described["description"] == "${system:user.name}"


def test_columns_are_none_where_there_is_no_table(spark, rows, path):
    assert delta.columns(spark, path) is None
    append(rows, path, 0)
    assert delta.columns(spark, path).simpleString() == "struct<id:int,latitude:double>"


def test_properties_are_set_on_a_table_that_is_there(spark, rows, path):
    append(rows, path, 0)
    delta.set_properties(spark, path, {"delta.enableTypeWidening": "true"})
    assert properties(spark, path)["delta.enableTypeWidening"] == "true"


def test_a_table_is_read_as_it_was_at_a_version(spark, rows, path):
    append(rows, path, 0)
    append(rows, path, 1)
    assert [delta.read(spark, path, version).count() for version in (0, 1, None)] == [2, 4, 4]


def detail(spark, path):
    return spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]


def properties(spark, path):
    return detail(spark, path)["properties"]


def test_a_new_table_is_empty_and_gets_schema_and_properties(spark, path):
    wanted = {"delta.logRetentionDuration": "interval 9 days", "note's": "a\\b 'c' \"d\""}
    schema = StructType.fromDDL("id INT, origin STRUCT<partition: INT, offset: BIGINT>")
    delta.ensure_table(spark, path, schema, wanted)
    assertDataFrameEqual(delta.read(spark, path), local_rows(spark, [], schema), rtol=0, atol=0)
    assert delta.read(spark, path).schema == schema
    assert properties(spark, path).items() >= wanted.items()


def test_an_existing_table_is_left_as_it_is(spark, rows, path):
    append(rows, path, 0)
    delta.ensure_table(spark, path, StructType.fromDDL("other STRING"), {"note": "x"})
    assert delta.latest_version(spark, path) == 0
    assert "note" not in properties(spark, path)
    assertDataFrameEqual(delta.read(spark, path), rows, rtol=0, atol=0)


def test_a_folder_without_a_delta_log_is_no_table(spark, rows, path):
    assert delta.is_table(spark, path) is False
    rows.write.parquet(path)
    assert delta.is_table(spark, path) is False


@pytest.mark.parametrize(
    "left",
    [
        pytest.param([], marks=pytest.mark.thorough("a killed writer that wrote no file yet")),
        [".00000000000000000000.json.1.tmp"],
    ],
)
def test_a_writer_that_was_killed_before_its_first_commit_is_in_nobodys_way(spark, rows, path, left):
    log = Path(path) / "_delta_log"
    log.mkdir(parents=True)
    for name in left:
        (log / name).write_text("{")
    wanted = {"delta.logRetentionDuration": "interval 9 days", "parquet.enable.dictionary": "false"}
    delta.ensure_table(spark, path, rows.schema, wanted, cluster_by=rows.columns[:1])
    assert properties(spark, path).items() >= wanted.items()
    assert detail(spark, path)["clusteringColumns"] == rows.columns[:1]
    assert append(rows, path, 0)
    assertDataFrameEqual(delta.read(spark, path), rows, rtol=0, atol=0)


def test_a_table_that_another_process_makes_is_seen_by_a_session_that_looked_before(spark, rows, path):
    """A writer was killed before its first commit, a session looked at the table, another process made it."""
    (Path(path) / "_delta_log").mkdir(parents=True)
    assert not delta.is_table(spark, path)
    elsewhere = f"{path}-of-another-process"
    delta.append_once(rows, elsewhere, writer="w", batch_id=0, commit={})
    shutil.copytree(elsewhere, path, dirs_exist_ok=True)
    assert delta.is_table(spark, path)
    assert delta.commit_of(spark, path, writer="w", batch_id=0) is not None


@pytest.mark.thorough("a further race between writers")
def test_a_table_that_appears_while_it_is_made_is_taken_as_it_is(spark, rows, path):
    append(rows, path, 0)
    log = Path(path) / "_delta_log"
    log.rename(away := Path(path).with_name("away"))
    threading.Timer(1, away.rename, [log]).start()
    delta.ensure_table(spark, path, rows.schema, {})
    assertDataFrameEqual(delta.read(spark, path), rows, rtol=0, atol=0)


def test_files_that_are_no_table_are_refused(spark, rows, path):
    rows.write.parquet(path)
    with pytest.raises(StorageError) as raised:
        delta.ensure_table(spark, path, rows.schema, {})
    assert raised.value.fields == {"table": path, "reason": "files"}


@pytest.mark.thorough("a dozen commits after those of a writer")
def test_the_version_of_a_batch_is_that_of_its_writer_whatever_came_behind_it(spark, rows, path):
    for batch_id, writer in ((0, "gps/1"), (0, "gps/2"), (1, "gps/1")):
        delta.append_once(rows, path, writer=writer, batch_id=batch_id, commit={})
    # As auto compaction does, behind a commit.
    spark.sql(f"OPTIMIZE delta.`{path}`")
    found = [
        delta.version_of(spark, path, writer=writer, batch_id=batch_id)
        for writer, batch_id in (("gps/1", 0), ("gps/2", 0), ("gps/1", 1), ("gps/2", 1))
    ]
    assert found == [0, 1, 2, None]
    # The newest ten commits are read first.
    for number in range(9):
        delta.set_properties(spark, path, {"topiclake.test": str(number)})
    assert delta.version_of(spark, path, writer="gps/2", batch_id=0) == 1
