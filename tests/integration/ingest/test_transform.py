"""A transform of rows: whatever it does, each record is in one place, once, on the embedded broker."""

import json

import pytest
from pyspark.sql import functions as F

import topiclake as tl
from tests.support.numbers_topic import SCHEMA, Numbers, crash_after_batch, right
from topiclake.delta import table as delta
from topiclake.errors import IngestError
from topiclake.ingest import registered_batch

BAD = b"\1no record"
FURTHER = pytest.mark.thorough("a further change of rows")
NOTED = json.dumps(
    {
        "type": "record",
        "name": "N",
        "fields": [{"name": "n", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }
)


def labelled(rows):
    """Make text of a column, and add one."""
    return rows.withColumns({"n": F.col("n").cast("string"), "label": F.concat(F.lit("n"), "n")})


def noted(rows):
    """Add a column."""
    return rows.withColumn("label", F.concat(F.lit("n"), "n"))


@pytest.fixture
def numbers(connected, tmp_path):
    numbers = Numbers(connected, tmp_path)
    numbers.topic("a")
    return numbers


def table(numbers, name="table"):
    return delta.read(numbers.spark, f"{numbers.folder}/{name}")


def values(numbers, column="label", name="table"):
    return sorted(row[0] for row in table(numbers, name).select(column).collect())


def test_each_valid_row_is_transformed(numbers):
    first = numbers.register("a")
    numbers.send("a", right(first, 1), right(first, 2), BAD)
    numbers.ingested(numbers.settings(), labelled)
    assert table(numbers).schema.simpleString() == (
        "struct<n:string,_kafka:struct<partition:int,offset:bigint>,label:string>"
    )
    assert values(numbers) == ["n1", "n2"]
    assert tl.audit_ingest(numbers.spark, numbers.settings()).ok


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (lambda rows: rows.drop("_kafka"), "kafka_column"),
        pytest.param(lambda rows: rows.withColumn("_kafka", F.lit(1)), "kafka_column", marks=FURTHER),
        pytest.param(lambda rows: None, "no_dataframe", marks=FURTHER),
        (lambda rows: rows.select("_kafka", "nowhere"), "not_applicable"),
    ],
)
def test_a_transform_of_other_columns_is_refused_before_the_start(numbers, transform, reason):
    numbers.register("a")
    with pytest.raises(IngestError) as raised:
        tl.start_ingest(numbers.spark, numbers.settings(), transform=transform)
    assert raised.value.fields["reason"] == reason
    assert raised.value.fields["pipeline"] == "gps"
    assert not delta.is_table(numbers.spark, f"{numbers.folder}/table")


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(lambda rows: rows.where("n <> 3"), id="filter"),
        pytest.param(
            lambda rows: rows.where("n <> 3").union(rows.where("n = 1")), id="one for another", marks=FURTHER
        ),
    ],
)
def test_a_transform_that_changes_the_number_of_rows_writes_nothing(numbers, transform):
    first = numbers.register("a")
    numbers.send("a", *(right(first, n) for n in range(5)), BAD)
    with pytest.raises(IngestError, match=r"transform .*lambda.* of pipeline gps") as raised:
        numbers.ingested(numbers.settings(), transform)
    assert "in batch 0, of which nothing is written" in str(raised.value)
    assert table(numbers).count() == 0
    assert not delta.is_table(numbers.spark, f"{numbers.folder}/table_quarantine")


def failing(rows):
    """Fail in Python at a row."""

    def text(n):
        if n == 3:
            raise ValueError("three is no number")
        return str(n)

    return rows.withColumn("label", F.udf(text, "string")("n"))


def test_a_transform_that_no_longer_fits_the_table_is_refused_before_the_start(numbers):
    numbers.register("a")
    numbers.ingested(numbers.settings(), noted)
    with pytest.raises(IngestError, match="n is bigint in the table and would become string"):
        tl.start_ingest(numbers.spark, numbers.settings(), transform=labelled)


@pytest.mark.parametrize(
    ("transform", "cause"),
    [
        (lambda rows: rows.withColumn("label", F.expr("10 div (n - 3)")), "DIVIDE_BY_ZERO"),
        pytest.param(failing, "three is no number", marks=pytest.mark.thorough("the same error, in Python")),
    ],
)
def test_an_error_of_the_transform_names_it_and_writes_nothing(numbers, transform, cause):
    first = numbers.register("a")
    numbers.send("a", *(right(first, n) for n in range(5)))
    with pytest.raises(IngestError, match=f"of pipeline gps failed in batch 0, .*{cause}"):
        numbers.ingested(numbers.settings(), transform)
    assert table(numbers).count() == 0


@pytest.mark.thorough("repeated batches are tested in test_micro_batch")
@pytest.mark.slow("three runs and an audit")
def test_a_batch_that_is_repeated_after_a_crash_is_transformed_and_written_once(numbers):
    first, settings = numbers.register("a"), numbers.settings()
    late = numbers.registry.register(f"{numbers.name}-other", NOTED)
    numbers.send("a", right(first, 1), right(late, 2) + b"\x02x", BAD)
    numbers.ingested(settings, labelled)
    before = delta.latest_version(numbers.spark, f"{numbers.folder}/table")
    crash_after_batch(numbers.folder / "checkpoint", 0)
    registered_batch._states.clear()
    numbers.ingested(settings, labelled)
    assert values(numbers) == ["n1", "n2"]
    assert delta.latest_version(numbers.spark, f"{numbers.folder}/table") == before
    # The table has a text where the version has a number: what counts is what the transform makes of it.
    second = numbers.registry.register(f"{numbers.name}-a-value", NOTED)
    numbers.send("a", right(second, 3) + b"\x02x")
    numbers.ingested(settings, labelled)
    assert values(numbers) == ["n1", "n2", "n3"]
    assert sorted(table(numbers).columns) == ["_kafka", "label", "n", "note"]
    assert tl.audit_ingest(numbers.spark, settings).ok


@pytest.mark.thorough("the same transform, for several topics")
def test_each_of_several_topics_is_transformed_and_one_that_fails_is_paused(numbers):
    numbers.topic("b")
    for name, first in (("a", 1), ("b", 5)):
        schema_id = numbers.register(name)
        numbers.send(name, right(schema_id, first), right(schema_id, first + 1))
    settings = numbers.settings(**numbers.several)

    def without_five(rows):
        return labelled(rows.where("n <> 5"))

    numbers.ingested(settings, without_five)
    assert values(numbers, name=f"tables/{numbers.name}-a") == ["n1", "n2"]
    (missed,) = {row["why"] for row in tl.paused_topics(numbers.spark, settings).collect()}
    assert "made 1 rows" in missed
    numbers.ingested(settings, labelled)
    assert values(numbers, name=f"tables/{numbers.name}-b") == ["n5", "n6"]
    assert tl.paused_topics(numbers.spark, settings).count() == 0


def labelled_value(rows):
    """Add a column to rows of a declared format."""
    return rows.withColumn("label", F.concat(F.lit("n"), rows.columns[0]))


def test_rows_of_a_declared_format_are_transformed(numbers):
    numbers.send("a", b'{"n": 1}', b"none")
    numbers.ingested(numbers.settings(value_format="json", value_schema="n BIGINT"), labelled_value)
    assert values(numbers) == ["n1"]


@pytest.mark.thorough("repeated batches are tested in test_json")
@pytest.mark.slow("four runs and an audit")
def test_rows_of_a_declared_format_are_transformed_once_and_continue_after_a_refusal(numbers):
    given, sent, expected = {"value_format": "text"}, [b"1", b"\xff"], ["n1"]
    settings = numbers.settings(**given)
    numbers.send("a", *sent)
    numbers.ingested(settings, labelled_value)
    assert values(numbers) == expected
    crash_after_batch(numbers.folder / "checkpoint", 0)
    numbers.ingested(settings, labelled_value)
    assert values(numbers) == expected
    assert tl.audit_ingest(numbers.spark, settings).ok
    numbers.send("a", sent[0])
    with pytest.raises(IngestError, match="made 0 rows of 1 in batch 1"):
        numbers.ingested(settings, lambda rows: labelled_value(rows).where("label = 'none'"))
    assert values(numbers) == expected
    # The batch that was refused is written with another transform.
    numbers.ingested(settings, labelled_value)
    assert values(numbers) == expected * 2


@pytest.mark.thorough("a replay decodes and writes by the code of an ingest")
@pytest.mark.slow("a claim that two replays finish")
def test_a_replay_transforms_rows_too(numbers):
    first, settings = numbers.register("a"), numbers.settings()
    probe = json.dumps(json.loads(SCHEMA) | {"doc": f"{numbers.name} probe"})
    later = numbers.registry.register(f"{numbers.name}-probe", probe) + 1
    numbers.send("a", right(first, 1), right(later, 2), right(later, 3))
    numbers.ingested(settings, labelled)
    schema = json.dumps(json.loads(SCHEMA) | {"doc": numbers.name})
    assert numbers.registry.register(f"{numbers.name}-other", schema) == later
    with pytest.raises(IngestError, match="made 1 rows"):
        tl.replay_quarantine(numbers.spark, settings, transform=lambda rows: labelled(rows.where("n = 2")))
    assert values(numbers) == ["n1"]
    # The start replays what waits for a schema; the claim is open.
    numbers.ingested(settings, labelled)
    assert values(numbers) == ["n1", "n2", "n3"]
