"""What Delta can do to the type of a column that is there, against real tables; and what it is told first."""

import contextlib
from datetime import date, datetime
from decimal import Decimal

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from tests.support.local_rows import local_rows
from topiclake.delta import evolution
from topiclake.delta import table as delta

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
    ("STRUCT<a: STRING, b: {}>", lambda value: ("s", value), "x0.b"),
    ("ARRAY<{}>", lambda value: [value, None], "x0.element"),
    ("MAP<STRING, {}>", lambda value: {"k": value}, "x0.value"),
    ("MAP<{}, STRING>", lambda value: {value: "v"}, "x0.key"),
    ("STRUCT<b: ARRAY<STRUCT<c: {}>>>", lambda value: ([(value,)],), "x0.b.element.c"),
]


def columns(*types):
    """Columns x0, x1, … of these types."""
    return StructType.fromDDL(", ".join(f"x{number} {kind}" for number, kind in enumerate(types)))


def widened(spark, path, cases):
    """Append a row of the old types, one of the new as the ingest does, and one of the old again."""
    was, wanted = columns(*(old for old, *_ in cases)), columns(*(new for _, new, *_ in cases))
    before, after = [before for _, _, before, _ in cases], [after for *_, after in cases]
    delta.append_once(local_rows(spark, [before], was), path, writer="w", batch_id=0, commit={})
    delta.set_properties(spark, path, evolution.properties(was, wanted))
    delta.append_once(local_rows(spark, [after], wanted), path, writer="w", batch_id=1, commit={})
    fitted = evolution.cast_to_table(local_rows(spark, [before], was), delta.columns(spark, path))
    delta.append_once(fitted, path, writer="w", batch_id=2, commit={})
    assert delta.columns(spark, path) == wanted


def test_columns_become_wider_and_keep_their_values(spark, tmp_path):
    path = str(tmp_path / "t")
    widened(spark, path, [case[:4] for case in WIDENED])
    found = [list(row) for row in delta.read(spark, path).collect()]
    old, new = [read for *_, read in WIDENED], [after for _, _, _, after, _ in WIDENED]
    assert sorted(map(repr, found)) == sorted(map(repr, [old, old, new]))


@pytest.mark.thorough("wider columns are tested next to it")
def test_types_inside_others_become_wider(spark, tmp_path):
    path, numbers = str(tmp_path / "t"), [("INT", "BIGINT", 1, 2**40), ("FLOAT", "DOUBLE", 0.5, 0.1)]
    cases = [
        (kind.format(old), kind.format(new), made(before), made(after))
        for kind, made, _ in NESTED
        for old, new, before, after in numbers
    ]
    widened(spark, path, cases)
    wanted = columns(*(new for _, new, *_ in cases))
    rows = [[before for _, _, before, _ in cases], [after for *_, after in cases]]
    expected = local_rows(spark, [rows[0], rows[1], rows[0]], wanted)
    found = delta.read(spark, path).collect()
    assert sorted(map(repr, found)) == sorted(map(repr, expected.collect()))


@pytest.mark.parametrize(("old", "new"), [case[:2] for case in WIDENED])
def test_what_delta_widens_is_not_refused(old, new):
    assert evolution.refusal(columns(old), columns(new)) is None
    assert evolution.refusal(columns(new), columns(old)) is None
    assert evolution.properties(columns(new), columns(old)) == {}


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_other_types_are_refused_both_ways(old, new):
    was, wanted = columns(old)["x0"].dataType, columns(new)["x0"].dataType
    said = f"x0 is {was.simpleString()} in the table and would become {wanted.simpleString()}"
    assert evolution.refusal(columns(old), columns(new)) == said
    assert evolution.refusal(columns(new), columns(old)) is not None


def test_delta_widens_none_of_what_is_refused(spark, tmp_path):
    """It refuses the rows, or casts them to the type of the table, which may lose values."""
    path, was = str(tmp_path / "t"), columns(*(old for old, _ in REFUSED))
    delta.ensure_table(spark, path, was, evolution.WIDENING)
    wanted = columns(*(new for _, new in REFUSED))
    for batch_id, field in enumerate(wanted):
        rows = local_rows(spark, [], StructType([field]))
        with contextlib.suppress(AnalysisException):
            delta.append_once(rows, path, writer="w", batch_id=batch_id, commit={})
    assert delta.columns(spark, path) == was


@pytest.mark.parametrize(("kind", "_made", "path"), NESTED)
def test_a_refusal_names_the_place(kind, _made, path):
    said = evolution.refusal(columns(kind.format("STRING")), columns(kind.format("BIGINT")))
    assert said == f"{path} is string in the table and would become bigint"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            ("INT", "STRUCT<a: INT>", "STRUCT<a: INT, b: STRING>", "ARRAY<STRUCT<a: INT>>"),
            ("INT", "STRUCT<a: INT, b: STRING>", "STRUCT<A: INT>", "ARRAY<STRUCT<b: INT>>", "STRING"),
        ),
        (("INT", "STRING"), ("INT",)),
    ],
)
def test_columns_that_only_one_side_has_are_no_reason(spark, tmp_path, old, new):
    path, was, wanted = str(tmp_path / "t"), columns(*old), columns(*new)
    assert evolution.refusal(was, wanted) is None
    assert evolution.properties(was, wanted) == {}
    for batch_id, schema in enumerate((was, wanted)):
        rows = local_rows(spark, [tuple(None for _ in schema)], schema)
        delta.append_once(rows, path, writer="w", batch_id=batch_id, commit={})
    assert delta.read(spark, path).count() == 2


def test_rows_that_are_narrower_leave_the_table_as_it_is(spark, tmp_path):
    path, wide = str(tmp_path / "t"), columns("BIGINT", "STRUCT<a: DOUBLE, b: ARRAY<BIGINT>>")
    narrow = columns("INT", "STRUCT<a: FLOAT, b: ARRAY<INT>>")
    delta.ensure_table(spark, path, wide, {})
    assert evolution.refusal(wide, narrow) is None
    assert evolution.properties(wide, narrow) == {}
    rows = evolution.cast_to_table(local_rows(spark, [(1, (0.5, [2]))], narrow), wide)
    delta.append_once(rows, path, writer="w", batch_id=0, commit={})
    assert [tuple(row) for row in delta.read(spark, path).collect()] == [(1, (0.5, [2]))]
    assert delta.columns(spark, path) == wide


def test_each_leaf_is_as_wide_as_the_wider_side(spark):
    table, rows = (
        columns("BIGINT", "STRUCT<a: INT, b: DOUBLE>"),
        columns("INT", "STRUCT<a: BIGINT, b: FLOAT, c: DATE>"),
    )
    fitted = evolution.cast_to_table(local_rows(spark, [], rows), table)
    assert fitted.schema == columns("BIGINT", "STRUCT<a: BIGINT, b: DOUBLE, c: DATE>")


def test_names_that_differ_in_case_are_one_column(spark):
    table, rows = StructType.fromDDL("Id BIGINT"), StructType.fromDDL("id INT")
    assert evolution.refusal(table, StructType.fromDDL("ID STRING")) is not None
    assert evolution.cast_to_table(local_rows(spark, [], rows), table).schema == StructType.fromDDL(
        "id BIGINT"
    )


PLACES = ["{}", "STRUCT<a: {}>", "ARRAY<{}>", "MAP<STRING, {}>", "MAP<{}, STRING>"]


@pytest.mark.parametrize("kind", PLACES)
def test_a_time_without_zone_is_found_wherever_it_stands(kind):
    wanted = columns("INT", kind.format("TIMESTAMP_NTZ"))
    assert evolution.properties(columns("INT"), wanted) == evolution.TIMESTAMP_NTZ
    assert evolution.properties(wanted, wanted) == {}
    assert evolution.properties(columns("INT"), columns("INT", kind.format("TIMESTAMP"))) == {}


def test_a_time_without_zone_needs_a_feature_of_the_table(spark, tmp_path):
    path, was = str(tmp_path / "t"), columns("INT")
    wanted = columns("INT", *(kind.format("TIMESTAMP_NTZ") for kind in PLACES))
    delta.ensure_table(spark, path, was, {})
    rows = local_rows(spark, [(1, *(None for _ in PLACES))], wanted)
    with pytest.raises((AnalysisException, Py4JJavaError), match="timestampNtz"):
        delta.append_once(rows, path, writer="w", batch_id=0, commit={})
    delta.set_properties(spark, path, evolution.properties(was, wanted))
    delta.append_once(rows, path, writer="w", batch_id=0, commit={})
    assert [tuple(row) for row in delta.read(spark, path).collect()] == [(1, *(None for _ in PLACES))]
