"""Changes into a table of SCD type 1: the cases of change data, by direct calls of the batch."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import functions as F

from tests.spark.changes.target import Target
from tests.support.crash import CrashError
from tests.support.local_rows import local_rows
from topiclake.changes import tables
from topiclake.changes.order import Order
from topiclake.changes.rows import ChangeRows
from topiclake.changes.rules import ChangeRules
from topiclake.delta import merge
from topiclake.delta import table as delta
from topiclake.errors import ConfigError, StorageError

COLUMNS = (
    "id STRING, region STRING, v STRING, op STRING, at BIGINT, _kafka STRUCT<partition INT, offset BIGINT>"
)


def change(key, v, at, offset, op="u", region="eu"):
    return key, region, v, op, at, (0, offset)


@pytest.mark.slow("four MERGEs")
def test_the_newest_change_of_each_key_is_its_row_however_changes_arrive(spark, tmp_path):
    target = Target(
        spark,
        tmp_path,
        COLUMNS,
        keys=("id",),
        sequence_by=("at",),
        apply_as_deletes="op = 'd'",
        except_column_list=("op",),
    )
    # The user's table: with a partition, and with a column that changes don't have.
    columns = "id STRING, note STRING, region STRING"
    spark.sql(f"CREATE TABLE delta.`{target.table}` ({columns}) USING delta PARTITIONED BY (region)")
    target.ensure()
    first = [
        change("two updates", "v2", 2, 1),
        change("two updates", "v1", 1, 2),
        change("late update", "v2", 2, 3),
        change("late after delete", "v1", 1, 4),
        change("late after delete", None, 3, 5, "d"),
        change("delete first", None, 5, 6, "d", None),
        change("delete, insert", None, 1, 7, "d"),
        change("delete, insert", "v2", 2, 8),
        change("same order", "second", 7, 11),
        change("same order", "first", 7, 10),
        change("key only", "v1", 1, 12),
        change(None, "no key", 1, 13),
        change("no order", "v", None, 14),
    ]
    second = [
        change("late update", "v1", 1, 20),
        change("late after delete", "v2", 2, 21),
        change("delete first", "v4", 4, 22),
        change("same order", "zeroth", 7, 9),
        change("key only", None, 2, 23, "d", None),
    ]
    target.write(first, 0)
    target.write(second, 1)
    expected = {"two updates": "v2", "late update": "v2", "delete, insert": "v2", "same order": "second"}
    assert target.current("id", "v") == expected
    assert set(target.current("id", "note", "region", "at").values()) == {(None, "eu", 2), (None, "eu", 7)}
    deleted = target.stored().where("_cdc.deleted").orderBy("id").collect()
    assert [(row["id"], row["_cdc"]["order_at"], row["v"], row["region"]) for row in deleted] == [
        ("delete first", 5, None, None),
        ("key only", 2, None, None),
        ("late after delete", 3, None, None),
    ]
    assert target.rejected().keys() == {(13, "no_key"), (14, "no_order")}
    assert target.rejected()[13, "no_key"]["v"] == "no key"
    later, earlier = target.commits()
    assert earlier["changes"] == {"merged": 7, "superseded": 4, "deleted": 2, "skipped": 0, "quarantined": 2}
    assert earlier["offsets"] == {"0": [1, 14]}
    assert later["changes"] == {"merged": 5, "superseded": 0, "deleted": 1, "skipped": 0, "quarantined": 0}

    # Delta skips a batch that the table has. Without that, the same changes are not newer than themselves.
    version, before = delta.latest_version(spark, target.table), target.stored().collect()
    target.write(first, 0)
    assert delta.latest_version(spark, target.table) == version
    assert delta.read(spark, target.quarantine).count() == 2
    target.write([*second, *first], 0, writer="another")
    assert sorted(target.stored().collect(), key=str) == sorted(before, key=str)


@pytest.mark.thorough("a repeated MERGE and the quarantine are tested with the newest changes")
@pytest.mark.slow("three batches")
def test_a_failed_batch_is_repeated_and_each_of_its_changes_counts_once(spark, tmp_path, monkeypatch):
    columns = "id INT, v INT, _kafka STRUCT<partition INT, offset BIGINT>"
    target = Target(spark, tmp_path, columns, keys=("id",)).ensure()
    # With a new column.
    wider = "id INT, v INT, note STRING, _kafka STRUCT<partition INT, offset BIGINT>"
    batch = [(1, 20, None, (0, 1)), (2, 3, "new", (0, 2)), (None, 3, None, (0, 3))]

    def dying(*args, **given):
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(merge, "execute_once", dying)
        with pytest.raises(CrashError):
            target.write(batch, 0, columns=wider)
    # The quarantine has its part of the batch, and the table has not.
    assert target.rejected().keys() == {(3, "no_key")}
    assert target.current("id", "v") == {}
    target.write(batch, 0, columns=wider)
    assert delta.read(spark, target.quarantine).count() == 1
    assert target.stored().where("_cdc.offset = 2").count() == 1
    # Older records have the columns before it.
    target.write([(3, 4, (0, 6)), (2, 4, (0, 7))], 1)
    assert target.current("id", "v", "note") == {1: (20, None), 2: (4, "new"), 3: (4, None)}


@pytest.mark.thorough("a repeated MERGE is tested by itself")
@pytest.mark.slow("writers in three threads")
def test_other_writers_of_the_table_are_no_loss(spark, tmp_path):
    columns = "id INT, v INT, _kafka STRUCT<partition INT, offset BIGINT>"
    target = Target(spark, tmp_path, columns, keys=("id",)).ensure()
    target.write([(0, 0, (0, 0)), (1, 0, (1, 0))], 0)

    def write(partition):
        rows = local_rows(
            spark.newSession(), [(partition, 1, (partition, 1)), (2, 5, (2, partition))], columns
        )
        target.target.write(rows, writer=f"w{partition}", batch_id=1)

    with ThreadPoolExecutor() as pool:
        writes = [pool.submit(write, partition) for partition in (0, 1)]
        writes.append(pool.submit(spark.newSession().sql, f"OPTIMIZE delta.`{target.table}`"))
        for done in writes:
            done.result()
    assert target.current("id", "v") == {0: 1, 1: 1, 2: 5}
    assert target.stored().where("id = 2").select("_cdc.offset").collect() == [(1,)]


@pytest.mark.slow("three MERGEs")
def test_a_truncate_deletes_all_older_rows_and_later_ones_that_are_older(spark, tmp_path):
    columns = "id INT, v INT, op STRING, lsn BIGINT, _kafka STRUCT<partition INT, offset BIGINT>"
    rules = {"keys": ("id",), "sequence_by": ("lsn",), "column_list": ("v",)}
    target = Target(spark, tmp_path, columns, apply_as_truncates="op = 't'", **rules).ensure()
    target.write([(1, 1, "c", 1, (0, 0)), (2, 1, "c", 9, (1, 0)), (3, 1, "c", 2, (0, 1))], 0)
    # The rows of one batch before and after it, and a key of the table.
    batch = [
        (None, None, "t", 5, (0, 2)),
        (4, 1, "c", 4, (1, 1)),
        (5, 1, "c", 6, (1, 2)),
        (3, 2, "u", 7, (0, 3)),
    ]
    target.write(batch, 1)
    expected = {2: 1, 3: 2, 5: 1}
    assert target.current("id", "v") == expected
    assert target.commits()[0]["changes"]["superseded"] == 1
    # Keys that the table never had, and a truncate that is older than the stored one.
    target.write([(6, 1, "c", 3, (1, 3)), (1, 2, "u", 4, (0, 4)), (None, None, "t", 2, (0, 5))], 2)
    assert target.current("id", "v") == expected


@pytest.mark.thorough("an option of the same MERGE")
@pytest.mark.slow("two MERGEs")
def test_null_keeps_a_value_where_the_rules_say_so(spark, tmp_path):
    columns = "id STRING, a INT, b INT, op STRING, _kafka STRUCT<partition INT, offset BIGINT>"
    target = Target(
        spark,
        tmp_path,
        columns,
        keys=("id",),
        ignore_null_updates=("a",),
        apply_as_deletes="op = 'd'",
        column_list=("a", "b"),
    ).ensure()
    first = [
        ("kept", 1, 1, "c", (0, 0)),
        ("in a batch", 1, 1, "c", (0, 1)),
        ("in a batch", None, 2, "u", (0, 2)),
        ("restarted", 1, 1, "c", (0, 3)),
        ("late", 1, 1, "c", (0, 14)),
        ("deleted", 1, 1, "c", (0, 15)),
        ("deleted", None, None, "d", (0, 16)),
    ]
    second = [
        ("kept", None, None, "u", (0, 4)),
        ("restarted", 5, 5, "u", (0, 5)),
        ("restarted", None, None, "d", (0, 6)),
        ("restarted", None, 3, "c", (0, 7)),
        ("late", 3, 3, "u", (0, 13)),
        ("late", None, 4, "u", (0, 17)),
        ("deleted", None, 7, "c", (0, 18)),
    ]
    target.write(first, 0)
    target.write(second, 1)
    assert target.current("id", "a", "b") == {
        "kept": (1, None),
        "in a batch": (1, 2),
        "restarted": (None, 3),
        "late": (1, 4),
        "deleted": (None, 7),
    }


def test_the_history_has_the_counts_of_a_batch_that_merges_nothing(spark, tmp_path):
    columns = "id INT, v INT, _kafka STRUCT<partition INT, offset BIGINT>"
    target = Target(spark, tmp_path, columns, keys=("id",)).ensure()
    target.write([(None, 1, (0, 7)), (None, 2, (1, 8))], 0)
    target.write([], 1)
    version = delta.latest_version(spark, target.table)
    target.write([], 1)
    assert delta.latest_version(spark, target.table) == version
    none = {"merged": 0, "superseded": 0, "deleted": 0, "skipped": 0, "quarantined": 0}
    rejected = {"changes": none | {"quarantined": 2}, "offsets": {"0": [7, 7], "1": [8, 8]}}
    assert target.commits() == [
        {"writer": "w", "batch_id": 1, "changes": none, "offsets": {}},
        {"writer": "w", "batch_id": 0, **rejected},
    ]


@pytest.mark.slow("a MERGE")
def test_a_table_of_the_user_may_have_names_in_another_case(spark, tmp_path):
    columns = "id INT, note STRING, new INT, _kafka STRUCT<partition INT, offset BIGINT>"
    rules = {"keys": ("id",), "apply_as_deletes": "new = 0"}
    target = Target(spark, tmp_path, columns, **rules)
    spark.sql(f"CREATE TABLE delta.`{target.table}` (ID INT, Note STRING) USING delta")
    target.ensure().ensure()
    assert target.stored().columns == ["ID", "Note", "new", "_cdc"]
    target.write([(1, "a", 1, (0, 0)), (2, "b", 1, (0, 1))], 0)
    target.write([(2, None, 0, (0, 2))], 1)
    assert target.current("ID", "Note") == {1: "a"}
    assert target.stored().where("_cdc.deleted").select("ID", "Note").collect() == [(2, None)]
    # Its `_cdc` is compared, also if another column is missing.
    other = Target(spark, tmp_path / "other", columns, **rules)
    spark.sql(f"CREATE TABLE delta.`{other.table}` (ID INT, _CDC INT) USING delta")
    with pytest.raises(ConfigError) as raised:
        other.ensure()
    assert (raised.value.fields["reason"], raised.value.fields["found"]) == ("order", "int")


def test_an_order_is_the_same_as_a_constant_in_each_zone(spark):
    # In Berlin, both times are 02:30.
    times = ["2026-10-25 00:30:00.000001Z", "2026-10-25 01:30:00.000001Z"]
    rows = local_rows(spark, [(time,) for time in times], "at STRING").selectExpr(
        "CAST(at AS TIMESTAMP) AS at",
        "TIMESTAMP_NTZ '2026-10-25 02:30:00.5' AS ntz",
        "DATE '1582-10-04' AS day",
        "CAST('12345678901234567890.125' AS DECIMAL(30, 3)) AS n",
        "CAST(1e-300 / 3 AS DOUBLE) AS d",
        "-9223372036854775808L AS b",
        "'it''s ${x} \\ 1' AS t",
        "1 AS partition",
        "2L AS offset",
    )
    order = Order.of(rows.schema, ["at", "ntz", "day", "n", "d", "b", "t"], "_kafka")
    sorted_rows = rows.select(F.struct(*order.values()).alias("_cdc")).coalesce(1)
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    spark.conf.set(zone, "Europe/Berlin")
    texts = [row[0] for row in sorted_rows.select(F.array(*order.texts(F.col("_cdc")))).collect()]
    spark.conf.set(zone, "UTC")
    equal = [
        sorted_rows.where(F.expr(f"{order.sql()} = {order.literal(constant)}")).count() for constant in texts
    ]
    spark.conf.set(zone, before)
    assert equal == [1, 1]


def test_texts_of_positions_are_ordered_by_their_numbers(spark):
    ascending = [
        ["binlog.000003:9", "binlog.000003:123", "binlog.000010:4", "binlog.1000000:1"],
        ["0/9F", "0/A0", "0/FF", "0/100", "0/16b3748", "1/0", "A/0", "10/0"],
        ["00000.23", "00000.123", "00001.4"],
        ["0189ffff-7c5e-7000-8000-000000000000", "018a0a5d-0000-7000-8000-000000000000"],
        ["2026-01-31", "2026-02-01", "2026-10-01"],
        ["00000025:00000d98:00a2", "00000025:00000d98:00A3", "00000026:00000001:0001"],
        ["9", "10", "0099", "12345678901234567890123456789012345678901"],
    ]
    rows = [
        (index, number, text) for index, texts in enumerate(ascending) for number, text in enumerate(texts)
    ]
    changes = local_rows(spark, rows, "list INT, number INT, text STRING").coalesce(1)
    order = Order.of(changes.schema, ["text"], "_kafka")
    sortable = changes.select("list", "number", order.values()[0].alias("cdc"))
    found = sortable.orderBy("list", F.col("cdc")).collect()
    assert [(row["list"], row["number"]) for row in found] == [row[:2] for row in rows]
    assert len({row["cdc"] for row in found}) == len(rows)


def test_truncates_are_refused_for_a_table_whose_key_is_not_null(spark, tmp_path):
    columns = "id INT, v INT, op STRING, at INT, _kafka STRUCT<partition INT, offset BIGINT>"
    rules = {"keys": ("id",), "sequence_by": ("at",), "column_list": ("v",)}
    target = Target(spark, tmp_path, columns, apply_as_truncates="op = 't'", **rules)
    spark.sql(f"CREATE TABLE delta.`{target.table}` (id INT NOT NULL, v INT) USING delta")
    with pytest.raises(ConfigError) as raised:
        target.ensure()
    fields = {name: raised.value.fields[name] for name in ("reason", "constraint")}
    assert fields == {"reason": "truncates", "constraint": "NOT NULL id"}
    Target(spark, tmp_path, columns, **rules).ensure()


def test_the_table_has_the_properties_and_other_rules_are_refused(spark, tmp_path):
    columns = "id INT, name STRING, at TIMESTAMP, _kafka STRUCT<partition INT, offset BIGINT>"
    target = Target(spark, tmp_path, columns, keys=("id",), sequence_by=("at",))
    target.ensure()
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target.table}`").collect()[0]
    assert detail["clusteringColumns"] == []
    vectors = {"delta.enableDeletionVectors": "true", "delta.autoOptimize.autoCompact": "true"}
    assert vectors.items() <= detail["properties"].items()
    assert target.stored().columns == ["id", "name", "at", "_cdc"]
    # Other keys, another order, and columns or an order of other types.
    others = [
        (columns, ("name",), ("at",), "rules"),
        (columns, ("id",), (), "rules"),
        (columns.replace("name STRING", "name DOUBLE"), ("id",), ("at",), "columns"),
        (columns.replace("TIMESTAMP", "INT"), ("id",), ("at",), "columns"),
    ]
    for other_columns, keys, sequence_by, reason in others:
        other = Target(spark, tmp_path, other_columns, keys=keys, sequence_by=sequence_by)
        with pytest.raises(ConfigError) as raised:
            other.ensure()
        assert raised.value.fields["reason"] == reason
    delta.set_properties(spark, target.table, {"delta.appendOnly": "true"})
    with pytest.raises(ConfigError) as refused:
        target.ensure()
    assert refused.value.fields["reason"] == "append_only"
    delta.set_properties(spark, target.table, {"delta.appendOnly": "false"})
    delta.set_properties(spark, target.table, {delta.FORGETS_WRITERS: "interval 1 day"})
    with pytest.raises(StorageError) as stored:
        target.ensure()
    assert stored.value.fields["property"] == delta.FORGETS_WRITERS


def test_a_table_without_deletion_vectors_is_clustered_by_its_keys(spark, tmp_path):
    target = Target(spark, tmp_path, "id INT, raw BINARY, at INT", keys=("id", "raw"), sequence_by=("at",))
    target.ensure({"delta.enabledeletionvectors": "false"})
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target.table}`").collect()[0]
    assert detail["clusteringColumns"] == ["id"]
    assert detail["properties"]["delta.enableDeletionVectors"] == "false"
    assert "delta.autoOptimize.autoCompact" not in detail["properties"]


def test_a_purge_refuses_deletion_vectors_of_clusters(spark, tmp_path):
    target = Target(spark, tmp_path, "id INT, at INT", keys=("id",), sequence_by=("at",)).ensure()
    spark.sql(f"ALTER TABLE delta.`{target.table}` CLUSTER BY (id)")
    with pytest.raises(ConfigError) as raised:
        tables.purge(spark, target.table, 0)
    assert raised.value.fields["reason"] == "clustered"
    spark.sql(raised.value.remedy)
    assert tables.purge(spark, target.table, 0) == 0


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"keys": ()}, "keys"),
        ({"keys": ("other",)}, "keys"),
        ({"sequence_by": ("other",)}, "sequence_by"),
        ({"sequence_by": ("list",)}, "sequence_by"),
        ({"envelope": "maxwell"}, "envelope"),
        ({"stored_as_scd_type": 3}, "stored_as_scd_type"),
        ({"stored_as_scd_type": 2, "sequence_by": ()}, "stored_as_scd_type"),
        ({"stored_as_scd_type": 2, "apply_as_truncates": "true"}, "apply_as_truncates"),
        ({"track_history_column_list": ("at",)}, "track_history_column_list"),
        ({"stored_as_scd_type": 2, "track_history_column_list": ("other",)}, "track_history_column_list"),
        ({"column_list": ("id",), "except_column_list": ("at",)}, "column_list"),
        ({"except_column_list": ("other",)}, "except_column_list"),
        ({"ignore_null_updates": ("other",)}, "ignore_null_updates"),
        ({"apply_as_truncates": "true", "sequence_by": ()}, "apply_as_truncates"),
        ({"sequence_by": ()}, "sequence_by"),
    ],
)
def test_wrong_rules_are_refused_before_a_batch(spark, rules, field):
    changes = local_rows(spark, [], "id INT, at BIGINT, list ARRAY<INT>")
    with pytest.raises(ConfigError) as raised:
        ChangeRows.of(changes, ChangeRules(**({"keys": ("id",), "sequence_by": ("at",)} | rules)))
    assert raised.value.fields["parameter"] == field
