"""What Delta can do to the type of a column that is there, against real tables; and what it is told first."""

import contextlib
from datetime import date, datetime
from decimal import Decimal
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from topiclake import delta, evolution

#: Old type, new type, a row in the old, a row in the new, and the old row as it is read afterwards.
WIDENED = [
    ("TINYINT", "SMALLINT", 1, 2**14, 1),
    ("TINYINT", "INT", -1, 2**30, -1),
    ("TINYINT", "BIGINT", 1, 2**40, 1),
    ("TINYINT", "DOUBLE", 1, 0.1, 1.0),
    ("SMALLINT", "INT", 1, 2**30, 1),
    ("SMALLINT", "BIGINT", 1, 2**40, 1),
    ("SMALLINT", "DOUBLE", 1, 0.1, 1.0),
    ("INT", "BIGINT", -(2**31), 2**63 - 1, -(2**31)),
    ("INT", "DOUBLE", 2**31 - 1, 0.1, float(2**31 - 1)),
    ("FLOAT", "DOUBLE", 0.5, 0.1, 0.5),
    ("DATE", "TIMESTAMP_NTZ", date(1969, 12, 31), datetime(2026, 1, 2, 3, 4, 5, 6), datetime(1969, 12, 31)),
    ("DECIMAL(4,2)", "DECIMAL(6,2)", Decimal("1.25"), Decimal("1234.50"), Decimal("1.25")),
    ("DECIMAL(4,2)", "DECIMAL(8,4)", Decimal("1.25"), Decimal("1.2345"), Decimal("1.2500")),
]
REFUSED = [
    ("BIGINT", "DOUBLE"),
    ("BIGINT", "FLOAT"),
    ("INT", "FLOAT"),
    ("INT", "STRING"),
    ("STRING", "BINARY"),
    ("STRING", "DATE"),
    ("BOOLEAN", "INT"),
    ("DATE", "TIMESTAMP"),
    ("TIMESTAMP", "TIMESTAMP_NTZ"),
    ("DECIMAL(6,2)", "DECIMAL(6,4)"),
    ("INT", "ARRAY<INT>"),
    ("INT", "STRUCT<a: INT>"),
    ("MAP<STRING, INT>", "ARRAY<INT>"),
]
#: A type that holds another, a value of it, and how a refusal names the place.
NESTED = [
    ("STRUCT<a: STRING, b: {}>", lambda value: ("s", value), "x.b"),
    ("ARRAY<{}>", lambda value: [value, None], "x.element"),
    ("MAP<STRING, {}>", lambda value: {"k": value}, "x.value"),
    ("MAP<{}, STRING>", lambda value: {value: "v"}, "x.key"),
    ("STRUCT<b: ARRAY<STRUCT<c: {}>>>", lambda value: ([(value,)],), "x.b.element.c"),
]


def columns(*types):
    """Columns `x`, `y`, … of these types."""
    return StructType.fromDDL(", ".join(f"{name} {kind}" for name, kind in zip("xyz", types, strict=False)))


def widen(spark, path, old, new, before, after):
    """Append rows of type `old`, then of type `new` as the ingest does; return the table's values of x."""
    was, wanted = columns(old), columns(new)
    rows = spark.createDataFrame([(before,)], was)
    delta.append_once(rows, path, writer="w", batch_id=0, commit={})
    delta.set_properties(spark, path, evolution.properties(was, wanted))
    rows = spark.createDataFrame([(after,)], wanted)
    delta.append_once(rows, path, writer="w", batch_id=1, commit={})
    # Rows of the narrower type go on coming.
    fitted = evolution.fitted(spark.createDataFrame([(before,)], was), delta.columns(spark, path))
    delta.append_once(fitted, path, writer="w", batch_id=2, commit={})
    return [row["x"] for row in delta.read(spark, path).collect()]


@pytest.mark.parametrize(("old", "new", "before", "after", "read"), WIDENED)
def test_a_column_becomes_wider_and_keeps_its_values(spark, tmp_path, old, new, before, after, read):
    assert evolution.refusal(columns(old), columns(new)) is None
    found = widen(spark, str(tmp_path / "t"), old, new, before, after)
    assert (sorted(found), {type(each) for each in found}) == (sorted([read, read, after]), {type(read)})
    assert delta.columns(spark, str(tmp_path / "t")) == columns(new)


@pytest.mark.parametrize(("kind", "made", "_path"), NESTED)
@pytest.mark.parametrize(
    ("old", "new", "before", "after"), [("INT", "BIGINT", 1, 2**40), ("FLOAT", "DOUBLE", 1.0, 0.1)]
)
def test_a_type_inside_another_becomes_wider(spark, tmp_path, kind, made, _path, old, new, before, after):
    old, new = kind.format(old), kind.format(new)
    assert evolution.refusal(columns(old), columns(new)) is None
    found = widen(spark, str(tmp_path / "t"), old, new, made(before), made(after))
    assert sorted(map(repr, found)) == sorted(
        repr(row["x"])
        for row in spark.createDataFrame(
            [(made(each),) for each in (before, before, after)], columns(new)
        ).collect()
    )
    assert delta.columns(spark, str(tmp_path / "t")) == columns(new)


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_delta_refuses_what_is_refused(spark, tmp_path, old, new):
    """Both ways: neither can the table follow, nor can rows be cast to it without loss."""
    path = str(tmp_path / "t")
    was, wanted = columns(old), columns(new)
    old, new = was["x"].dataType.simpleString(), wanted["x"].dataType.simpleString()
    said = f"x is {old} in the table and would become {new}"
    assert evolution.refusal(was, wanted) == said
    assert evolution.refusal(wanted, was) is not None
    delta.ensure_table(spark, path, was, evolution.WIDENING)
    with contextlib.suppress(AnalysisException):
        delta.append_once(spark.createDataFrame([], wanted), path, writer="w", batch_id=0, commit={})
    # Some Delta casts to the type of the table, which may lose values; it widens none of these.
    assert delta.columns(spark, path) == was


@pytest.mark.parametrize(("kind", "_made", "path"), NESTED)
def test_a_refusal_names_the_place(kind, _made, path):
    said = evolution.refusal(columns(kind.format("STRING")), columns(kind.format("BIGINT")))
    assert said == f"{path} is string in the table and would become bigint"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("INT",), ("INT", "STRING")),
        (("INT", "STRING"), ("INT",)),
        (("STRUCT<a: INT>",), ("STRUCT<a: INT, b: STRING>",)),
        (("STRUCT<a: INT, b: STRING>",), ("STRUCT<A: INT>",)),
        (("ARRAY<STRUCT<a: INT>>",), ("ARRAY<STRUCT<b: INT>>",)),
    ],
)
def test_columns_that_only_one_side_has_are_no_reason(spark, tmp_path, old, new):
    path, was, wanted = str(tmp_path / "t"), columns(*old), columns(*new)
    assert evolution.refusal(was, wanted) is None
    assert evolution.properties(was, wanted) == {}
    for batch_id, schema in enumerate((was, wanted)):
        rows = spark.createDataFrame([tuple(None for _ in schema)], schema)
        delta.append_once(rows, path, writer="w", batch_id=batch_id, commit={})
    assert delta.read(spark, path).count() == 2


def test_rows_that_are_narrower_leave_the_table_as_it_is(spark, tmp_path):
    path, wide = str(tmp_path / "t"), columns("BIGINT", "STRUCT<a: DOUBLE, b: ARRAY<BIGINT>>")
    narrow = columns("INT", "STRUCT<a: FLOAT, b: ARRAY<INT>>")
    delta.ensure_table(spark, path, wide, {})
    assert evolution.refusal(wide, narrow) is None
    assert evolution.properties(wide, narrow) == {}
    rows = evolution.fitted(spark.createDataFrame([(1, (0.5, [2]))], narrow), wide)
    delta.append_once(rows, path, writer="w", batch_id=0, commit={})
    assert [tuple(row) for row in delta.read(spark, path).collect()] == [(1, (0.5, [2]))]
    assert delta.columns(spark, path) == wide


def test_each_leaf_is_as_wide_as_the_wider_side(spark):
    table, rows = (
        columns("BIGINT", "STRUCT<a: INT, b: DOUBLE>"),
        columns("INT", "STRUCT<a: BIGINT, b: FLOAT, c: DATE>"),
    )
    fitted = evolution.fitted(spark.createDataFrame([], rows), table)
    assert fitted.schema == columns("BIGINT", "STRUCT<a: BIGINT, b: DOUBLE, c: DATE>")


def test_names_that_differ_in_case_are_one_column(spark):
    table, rows = StructType.fromDDL("Id BIGINT"), StructType.fromDDL("id INT")
    assert evolution.refusal(table, StructType.fromDDL("ID STRING")) is not None
    assert evolution.fitted(spark.createDataFrame([], rows), table).schema == StructType.fromDDL("id BIGINT")


@pytest.mark.parametrize("kind", ["{}", "STRUCT<a: {}>", "ARRAY<{}>", "MAP<STRING, {}>", "MAP<{}, STRING>"])
def test_a_time_without_zone_needs_a_feature_of_the_table(spark, tmp_path, kind):
    was, wanted = columns("INT"), columns("INT", kind.format("TIMESTAMP_NTZ"))
    path = str(tmp_path / uuid4().hex)
    delta.ensure_table(spark, path, was, {})
    rows = spark.createDataFrame([(1, None)], wanted)
    with pytest.raises(AnalysisException, match="timestampNtz"):
        delta.append_once(rows, path, writer="w", batch_id=0, commit={})
    assert evolution.properties(was, wanted) == evolution.TIMESTAMP_NTZ
    delta.set_properties(spark, path, evolution.properties(was, wanted))
    delta.append_once(rows, path, writer="w", batch_id=0, commit={})
    assert [tuple(row) for row in delta.read(spark, path).collect()] == [(1, None)]
    assert evolution.properties(wanted, wanted) == {}
