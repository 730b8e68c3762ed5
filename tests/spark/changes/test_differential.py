"""Random changes in random batches against an oracle in plain Python, which shares no code with ours."""

import random

import pytest

from tests.spark.changes.target import Target

COLUMNS = "id INT, a INT, b STRING, op STRING, pos STRING, _kafka STRUCT<partition INT, offset BIGINT>"
KEYS = 12


def log(seed, number, *, truncates=True):
    """Return changes in the order of their source; a key has one partition, and partitions have offsets."""
    dice, offsets, found = random.Random(seed), [0, 0, 0], []
    for index in range(number):
        key = dice.randrange(KEYS)
        # Two changes in a row may have the same position: then the offset decides.
        pos = f"binlog.{(index // 40):06}:{index // 2 * 37}"
        if truncates and dice.random() < 0.02:
            # A truncate has a position that no other change has, in any partition.
            partition, values = dice.randrange(3), (None, None, None, "t", f"{pos}:1")
        else:
            partition = key % 3
            op = "d" if dice.random() < 0.25 else "u"
            # A deletion may carry its key only.
            values = (
                (key, None, None, op, pos)
                if op == "d"
                else (key, dice.randrange(3), dice.choice(["x", "y", None]), op, pos)
            )
        found.append((*values, (partition, offsets[partition])))
        offsets[partition] += 1
    return found


def batches(seed, changes):
    """Shuffle the arrival and cut it into batches."""
    dice = random.Random(seed)
    arrived = [
        change
        for _, change in sorted((index + dice.random() * 60, change) for index, change in enumerate(changes))
    ]
    cut = []
    while arrived:
        size = dice.randint(1, len(changes) // 2)
        cut.append(arrived[:size])
        arrived = arrived[size:]
    return cut


def position(change):
    """Return the order of a change as numbers."""
    parts = change[4].removeprefix("binlog.").split(":")
    return [*map(int, parts), *change[5]] if len(parts) == 2 else [*map(int, parts[:2]), 10**9, 0]


def newest(changes):
    rows = {}
    for change in sorted(changes, key=position):
        key, a, b, op, _, _ = change
        if op == "t":
            rows = {}
        elif op == "d":
            rows.pop(key, None)
        else:
            rows[key] = (a, b)
    return rows


def history(changes, tracked, *, ignores_null):
    """Return the versions of each key: key, values, start, end."""
    found = []
    for key in range(KEYS):
        version = None
        for _, a, b, op, pos, _ in sorted((change for change in changes if change[0] == key), key=position):
            if op == "d":
                if version:
                    found.append((key, *version, pos))
                version = None
                continue
            if version and ignores_null and b is None:
                b = version[1]
            if version and tracked((a, b)) == tracked(version[:2]):
                pos = version[2]
            elif version:
                found.append((key, *version, pos))
            version = (a, b, pos)
        if version:
            found.append((key, *version, None))
    return found


def run(spark, folder, changes, seed, **rules):
    given = {
        "keys": ("id",),
        "sequence_by": ("pos",),
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ("op", "pos"),
    }
    target = Target(spark, folder, COLUMNS, **given, **rules).ensure()
    dice = random.Random(seed)
    for batch_id, batch in enumerate(batches(seed, changes)):
        target.write(batch, batch_id)
        if dice.random() < 0.3:
            # Once as Spark repeats it, and once with its number lost.
            target.write(batch, batch_id)
            target.write(batch, 0, writer=f"another {batch_id}")
    return target


@pytest.mark.thorough("the stories of test_rows have each case")
@pytest.mark.slow("some five MERGEs")
def test_the_rows_are_those_of_the_oracle(spark, tmp_path):
    # The second of three batches is repeated.
    seed = 15
    changes = log(seed, 150)
    target = run(spark, tmp_path, changes, seed, apply_as_truncates="op = 't'")
    assert any(change[3] == "t" for change in changes)
    assert target.current("id", "a", "b") == newest(changes)


@pytest.mark.thorough("test_history has each case")
@pytest.mark.slow("some five MERGEs")
@pytest.mark.parametrize(
    ("seed", "number", "rules"),
    [
        # Three batches each; the second one of the second log is repeated.
        (5, 60, {"track_history_column_list": ("a",)}),
        (37, 120, {"track_history_except_column_list": ("a",), "ignore_null_updates": True}),
    ],
)
def test_the_versions_are_those_of_the_oracle(spark, tmp_path, seed, number, rules):
    changes = log(seed, number, truncates=False)
    target = run(spark, tmp_path, changes, seed, stored_as_scd_type=2, **rules)
    tracked = {
        "track_history_column_list": lambda row: row[0],
        "track_history_except_column_list": lambda row: row[1],
    }
    compared = next((tracked[name] for name in rules if name in tracked), lambda row: row)
    expected = history(changes, compared, ignores_null="ignore_null_updates" in rules)
    rows = target.view().select("id", "a", "b", "__START_AT", "__END_AT").collect()
    assert sorted(map(tuple, rows), key=str) == sorted(expected, key=str)
    # Each change is stored once.
    assert target.stored().count() == len(changes)
