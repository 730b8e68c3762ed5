"""Trips from the city's CSV files, and trips made of them."""

import csv
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from topiclake.errors import ConfigError
from topiclake_examples.taxi.trips import TRIP_SCHEMAS, generate_trips, read_trips

SAMPLE = Path(__file__).parents[3] / "data" / "yellow_tripdata_2019-01_sample.csv"
LINES = SAMPLE.read_text("utf-8").splitlines()
HEADER, TRIP = LINES[:2]


@pytest.fixture
def csv_file(tmp_path):
    """Write lines to a file, and return its address."""

    def written(*lines, name="trips.csv"):
        (tmp_path / name).write_text("\n".join([*lines, ""]), encoding="utf-8")
        return (tmp_path / name).as_uri()

    return written


def expected_trips():
    """The sample as Python's own CSV reader and numbers have it."""
    with SAMPLE.open(encoding="utf-8", newline="") as lines:
        return [tuple(as_python(*item) for item in row.items()) for row in csv.DictReader(lines)]


def as_python(name, text):
    if not text:
        return None
    kind = str(next(each["type"] for each in TRIP_SCHEMAS[18]["fields"] if each["name"] == name))
    if "timestamp" in kind:
        return datetime.fromisoformat(text)
    return int(text) if "int" in kind else float(text) if "double" in kind else text


def in_order(trips):
    return sorted((tuple(row) for row in trips), key=repr)


def test_every_trip_of_the_sample_is_read_as_it_is_written(spark):
    trips = read_trips(spark, SAMPLE.as_uri())
    assert trips.columns == HEADER.split(",")
    assert in_order(trips.collect()) == in_order(expected_trips())


def test_a_file_without_the_18th_column_has_nulls_there(spark, csv_file):
    trips = read_trips(spark, csv_file(HEADER.rpartition(",")[0], TRIP.rpartition(",")[0]))
    assert [row["congestion_surcharge"] for row in trips.collect()] == [None]
    assert trips.drop("congestion_surcharge").collect()[0]["total_amount"] == 9.75


def test_what_the_meter_did_not_record_may_be_missing(spark, csv_file):
    found = read_trips(spark, csv_file(HEADER, replaced({0: "", 3: "", 5: "", 6: "", 9: ""}))).collect()[0]
    assert [found[place] for place in (0, 3, 5, 6, 9)] == [None] * 5


def replaced(fields):
    """The first trip with some of its fields changed."""
    parts = TRIP.split(",")
    for place, text in fields.items():
        parts[place] = text
    return ",".join(parts)


@pytest.mark.parametrize(
    "line",
    [
        replaced({4: "far"}),
        replaced({3: "1.5"}),
        replaced({1: "2019-01-35 03:36:12"}),
        replaced({2: ""}),
        replaced({10: ""}),
        TRIP.rpartition(",")[0],
        f"{TRIP},1",
    ],
    ids=["text", "fraction", "no-date", "no-time", "no-fare", "short", "long"],
)
def test_a_line_that_is_no_trip_is_named_with_its_file(spark, csv_file, line):
    with pytest.raises(ConfigError, match=r"trips\.csv ") as refused:
        read_trips(spark, csv_file(HEADER, TRIP, line, TRIP))
    assert refused.value.fields["reason"] == "line"
    assert refused.value.fields["file"].endswith("trips.csv")
    assert line.split(",")[0] in refused.value.fields["line"]


def test_the_text_of_a_malformed_line_is_told(spark, csv_file):
    line = replaced({4: "far"})
    with pytest.raises(ConfigError) as refused:
        read_trips(spark, csv_file(HEADER, TRIP, line))
    assert refused.value.cause.endswith(line)


def test_another_header_is_refused_with_the_columns_that_are_allowed(spark, csv_file):
    with pytest.raises(ConfigError, match="a, b") as refused:
        read_trips(spark, csv_file("a,b", "1,2"))
    assert (refused.value.fields["columns"], refused.value.fields["reason"]) == (("a", "b"), "columns")
    assert HEADER.replace(",", ", ") in refused.value.remedy


def test_a_second_file_with_other_columns_is_named(spark, csv_file, tmp_path):
    csv_file(HEADER, TRIP, name="a.csv")
    csv_file(HEADER.rpartition(",")[0], TRIP.rpartition(",")[0], name="b.csv")
    with pytest.raises(ConfigError) as refused:
        read_trips(spark, tmp_path.as_uri())
    file = refused.value.fields.pop("file")
    assert file.endswith(("a.csv", "b.csv"))
    assert refused.value.fields == {"source": tmp_path.as_uri(), "reason": "header"}


def test_missing_files_are_named(spark, tmp_path):
    source = (tmp_path / "nowhere.csv").as_uri()
    with pytest.raises(ConfigError) as refused:
        read_trips(spark, source)
    assert refused.value.fields == {"source": source, "reason": "missing"}


# Made trips


@pytest.fixture(scope="module")
def sample(spark):
    trips = read_trips(spark, SAMPLE.as_uri()).cache()
    yield trips
    trips.unpersist()


@pytest.mark.thorough("made data of an example")
def test_the_same_seed_makes_the_same_trips_however_spark_splits_the_work(spark, sample):
    made = in_order(generate_trips(sample, 3000, 7).collect())
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    again = in_order(generate_trips(sample.repartition(7), 3000, 7).collect())
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    assert len(made) == 3000
    assert made == again
    assert made != in_order(generate_trips(sample, 3000, 8).collect())


@pytest.mark.thorough("a property of made data")
def test_made_trips_are_plausible(sample):
    made = generate_trips(sample, 20_000, 1).cache()
    assert made.schema.simpleString() == sample.schema.simpleString()
    assert made.distinct().count() > 19_900
    low, high = made.agg(F.min("tpep_pickup_datetime"), F.max("tpep_pickup_datetime")).collect()[0]
    assert datetime(2019, 1, 1) <= low < datetime(2019, 1, 8)
    assert datetime(2020, 1, 1) < high < datetime(2020, 2, 1)
    parts = "fare_amount + extra + mta_tax + tip_amount + tolls_amount + improvement_surcharge"
    off = f"abs(total_amount - ({parts})) > 0.011"
    # The sample itself has such trips.
    share = sample.where(off).count() / sample.count()
    assert made.where(off).count() / made.count() == pytest.approx(share, abs=0.01)
    backwards = "tpep_dropoff_datetime < tpep_pickup_datetime OR trip_distance < 0"
    assert made.where(backwards).count() == sample.where(backwards).count() == 0
    made.unpersist()
