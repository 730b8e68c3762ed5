"""What a plan says before an ingest is what the ingest then does; a plan changes nothing."""

import json
import shutil
import time

import pytest
from pyspark.sql.types import StructType

import topiclake as tl
from tests.support.numbers_topic import Numbers, right
from topiclake.delta import table as delta
from topiclake.errors import IngestError, StorageError, TopicNotFoundError
from topiclake.ingest.planned_ranges import PlannedRange
from topiclake.ingest.planned_tables import PlannedSchema

BAD = b"\1no record"
NOTED = json.dumps(
    {
        "type": "record",
        "name": "N",
        "fields": [{"name": "n", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }
)
TEXTUAL = json.dumps(
    {"type": "record", "name": "N", "fields": [{"name": "n", "type": "string", "default": ""}]}
)


@pytest.fixture
def numbers(connected, tmp_path):
    numbers = Numbers(connected, tmp_path)
    numbers.topic("a")
    return numbers


def test_a_plan_says_what_the_ingest_then_does_and_changes_nothing(numbers):
    first = numbers.register("a")
    numbers.send("a", *(right(first, n) for n in range(6)), BAD)
    settings, topic = numbers.settings(), f"{numbers.name}-a"
    plan = tl.plan_ingest(numbers.spark, settings)
    assert plan.is_first_start
    assert plan.has_changes
    assert plan.ranges == (PlannedRange(topic, 0, 0, 4, 4), PlannedRange(topic, 1, 0, 3, 3))
    (table,) = plan.tables
    assert (table.exists, table.changes) == (False, ())
    assert table.columns == "n BIGINT,_kafka STRUCT<partition: INT, offset: BIGINT>"
    assert table.sample == {"ok": 6, "bad_magic": 1}
    assert table.schemas == (PlannedSchema(f"{topic}-value", 1, first, ""),)
    assert sorted(path.name for path in numbers.folder.iterdir()) == []
    assert [tuple(row) for row in plan.offsets(numbers.spark).collect()] == [
        (topic, 0, 0, 4, 4),
        (topic, 1, 0, 3, 3),
    ]
    facts = {row["fact"]: row["value"] for row in plan.summary(numbers.spark).collect()}
    assert list(facts) == ["sample", "schema", "table", "columns", "quarantine"]
    assert (facts["sample"], facts["columns"]) == ("bad_magic: 1, ok: 6", table.columns)

    numbers.ingested(settings)
    assert delta.read(numbers.spark, table.path).count() == table.sample["ok"]
    assert delta.read(numbers.spark, table.quarantine_path).count() == table.sample["bad_magic"]
    plan = tl.plan_ingest(numbers.spark, settings)
    assert (plan.records, plan.has_changes, plan.is_first_start) == (0, False, False)
    assert json.loads(plan.to_json())["has_changes"] is False


@pytest.mark.thorough("an estimate, and not what the ingest does")
def test_a_plan_estimates_its_time_by_the_batch_of_the_last_run(numbers):
    schema_id = numbers.register("a")
    numbers.send("a", *(right(schema_id, n) for n in range(8)))
    assert tl.plan_ingest(numbers.spark, numbers.settings()).seconds is None
    begun = time.time()
    numbers.ingested(numbers.settings())
    ended = time.time()
    assert tl.plan_ingest(numbers.spark, numbers.settings()).seconds == 0
    numbers.send("a", *(right(schema_id, n) for n in range(8)))
    plan = tl.plan_ingest(numbers.spark, numbers.settings())
    (table,) = plan.tables
    # The run had one batch, of eight records.
    assert 8 / (ended - begun) < table.rows_per_second < 4_000
    assert plan.seconds == pytest.approx(8 / table.rows_per_second)
    # A commit of another query, with the number of the batch, is no batch of this one.
    rows, other = delta.read(numbers.spark, table.path).limit(0), {"run": "0", "rows": 8_000_000}
    delta.append_once(rows, table.path, writer="other", batch_id=0, commit=other)
    assert tl.plan_ingest(numbers.spark, numbers.settings()).tables[0] == table


def test_a_plan_names_new_columns_and_the_version_that_does_not_fit(numbers):
    first = numbers.register("a")
    columns = StructType.fromDDL("n BIGINT, _kafka STRUCT<partition: INT, offset: BIGINT>")
    delta.ensure_table(numbers.spark, f"{numbers.folder}/table", columns, {})
    subject = f"{numbers.name}-a-value"
    second = numbers.registry.register(subject, NOTED)
    third = numbers.registry.register(subject, TEXTUAL)
    plan = tl.plan_ingest(numbers.spark, numbers.settings())
    (table,) = plan.tables
    assert table.changes == ("new: note string",)
    fitting, noted, textual = table.schemas
    assert [fitting.refusal, noted.refusal] == ["", ""]
    assert (fitting.schema_id, noted.schema_id, textual.schema_id) == (first, second, third)
    assert textual.refusal.startswith("incompatible_schema: field n")
    assert (plan.has_changes, plan.records) == (True, 0)
    assert delta.columns(numbers.spark, table.path).names == ["n", "_kafka"]


def test_a_schema_that_no_subject_lists_is_asked_for_by_its_id(numbers):
    numbers.register("a")
    other = numbers.registry.register(f"{numbers.name}-other", NOTED)
    numbers.send("a", right(other, 1) + b"\x02x", right(2**30, 2))
    (table,) = tl.plan_ingest(numbers.spark, numbers.settings()).tables
    assert table.sample == {"ok": 1, "unknown_schema_id": 1}
    assert "note STRING" in table.columns


def test_values_of_a_declared_format_are_sampled_too(numbers):
    numbers.send("a", b'{"n": 1}', b'{"n": 2}', b"none")
    settings = numbers.settings(value_format="json", value_schema="n BIGINT")
    (table,) = tl.plan_ingest(numbers.spark, settings).tables
    assert table.sample == {"ok": 2, "undecodable": 1}
    assert (table.schemas, table.exists) == ((), False)
    assert table.columns.startswith("n BIGINT")


def test_each_of_several_topics_has_a_plan(numbers):
    numbers.topic("b")
    for name, count in (("a", 3), ("b", 1)):
        schema_id = numbers.register(name)
        numbers.send(name, *(right(schema_id, n) for n in range(count)))
    plan = tl.plan_ingest(numbers.spark, numbers.settings(**numbers.several))
    assert [(table.topic[-1], table.sample) for table in plan.tables] == [("a", {"ok": 3}), ("b", {"ok": 1})]
    assert plan.records == 4


def test_a_plan_is_refused_as_the_start_would_be(numbers):
    with pytest.raises(TopicNotFoundError):
        tl.plan_ingest(numbers.spark, numbers.settings(topic="nowhere"))
    numbers.send("a", right(numbers.register("a"), 1))
    numbers.ingested(numbers.settings())
    shutil.rmtree(numbers.folder / "checkpoint")
    with pytest.raises(IngestError) as raised:
        tl.plan_ingest(numbers.spark, numbers.settings())
    assert raised.value.fields["reason"] == "checkpoint_gone"


@pytest.mark.parametrize(
    "refuse",
    [
        tl.plan_ingest,
        pytest.param(tl.start_ingest, marks=pytest.mark.thorough("the same check before a start")),
    ],
)
def test_a_table_that_cannot_take_the_columns_is_refused(numbers, refuse):
    numbers.register("a")
    ddl = "n BIGINT, m INT, _key STRING, _kafka STRUCT<partition: INT, offset: BIGINT>"
    delta.ensure_table(numbers.spark, f"{numbers.folder}/table", StructType.fromDDL(ddl), {})
    for given in (
        {"value_format": "json", "value_schema": "n STRING"},
        {"value_format": "json", "value_schema": "m BIGINT"},
        {"key": "binary"},
    ):
        with pytest.raises(IngestError) as raised:
            refuse(numbers.spark, numbers.settings(**given))
        assert raised.value.fields["reason"] == "columns", given


def test_a_table_with_rows_of_another_program_is_refused(numbers):
    numbers.register("a")
    spark = numbers.spark
    table = f"{numbers.folder}/table"
    delta.ensure_table(spark, table, StructType.fromDDL("other INT"), {})
    # The user may create the table, with constraints or clustering.
    assert tl.plan_ingest(spark, numbers.settings()).tables[0].changes[0] == "new: n bigint"
    spark.range(1).selectExpr("int(id) AS other").write.format("delta").mode("append").save(table)
    for refuse in (tl.plan_ingest, tl.start_ingest):
        with pytest.raises(IngestError) as raised:
            refuse(spark, numbers.settings())
        assert (raised.value.fields["reason"], raised.value.fields["table"]) == ("foreign", table)
    assert delta.columns(spark, table).names == ["other"]
    assert not (numbers.folder / "checkpoint").exists()


@pytest.mark.thorough("the way on after the refusal")
def test_a_table_without_the_kafka_column_may_have_rows_of_another_program(numbers):
    table, spark = f"{numbers.folder}/table", numbers.spark
    spark.range(1).selectExpr("int(id) AS other").write.format("delta").save(table)
    numbers.send("a", right(numbers.register("a"), 1))
    numbers.ingested(numbers.settings(kafka_column="false"))
    assert delta.read(spark, table).count() == 2


def test_a_folder_that_cannot_be_written_is_refused_by_a_plan(numbers):
    numbers.register("a")
    (numbers.folder / "file").touch()
    with pytest.raises(StorageError) as raised:
        tl.plan_ingest(numbers.spark, numbers.settings(table_path=f"{numbers.folder}/file/table"))
    assert raised.value.fields["reason"] == "no_folder"
