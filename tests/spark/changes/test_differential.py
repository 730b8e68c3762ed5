"""Random changes in random batches against an oracle in plain Python, which shares no code with ours."""

import random

import pytest

from tests.spark.changes.target import Target

COLUMNS = "id INT, a INT, b STRING, op STRING, pos STRING, _kafka STRUCT<partition INT, offset BIGINT>"
KEYS = 12


def log(seed, number):
    """Return changes in the order of their source; a key has one partition, and partitions have offsets."""
    dice, offsets, found = random.Random(seed), [0, 0, 0], []
    for index in range(number):
        key = dice.randrange(KEYS)
        # Two changes in a row may have the same position: then the offset decides.
        pos = f"binlog.{(index // 40):06}:{index // 2 * 37}"
        if dice.random() < 0.02:
            # A truncate has a position that no other change has, in any partition.
            partition, values = dice.randrange(3), (None, None, None, "t", f"{pos}:1")
        else:
            partition = key % 3
            op = "d" if dice.random() < 0.25 else "u"
            # A deletion may carry its key only.
            values = (
                (key, None, None, op, pos)
                if op == "d"
                else (key, dice.randrange(3), dice.choice("xy"), op, pos)
            )
        found.append((*values, (partition, offsets[partition])))
        offsets[partition] += 1
    return found


def batches(seed, changes):
    """Shuffle the arrival a little and cut it; return batches, some of them twice."""
    dice = random.Random(seed)
    arrived = [
        change
        for _, change in sorted((index + dice.random() * 15, change) for index, change in enumerate(changes))
    ]
    cut = []
    while arrived:
        size = dice.randint(1, max(2, len(changes) // 4))
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


def run(spark, folder, seed, number):
    target = Target(
        spark,
        folder,
        COLUMNS,
        keys=("id",),
        sequence_by=("pos",),
        apply_as_deletes="op = 'd'",
        apply_as_truncates="op = 't'",
        except_column_list=("op", "pos"),
    ).ensure()
    changes = log(seed, number)
    dice = random.Random(seed)
    for batch_id, batch in enumerate(batches(seed, changes)):
        target.write(batch, batch_id)
        if dice.random() < 0.3:
            # Once as Spark repeats it, and once with its number lost.
            target.write(batch, batch_id)
            target.write(batch, 0, writer=f"another {batch_id}")
    return target, changes


@pytest.mark.thorough("the stories of test_rows have each case")
@pytest.mark.slow("some ten MERGEs")
@pytest.mark.parametrize(
    ("seed", "number"),
    [
        (1, 60),
        pytest.param(2, 600, marks=pytest.mark.thorough("more changes")),
        pytest.param(3, 600, marks=pytest.mark.thorough("more changes")),
    ],
)
def test_the_rows_are_those_of_the_oracle(spark, tmp_path, seed, number):
    target, changes = run(spark, tmp_path, seed, number)
    assert any(change[3] == "t" for change in changes)
    assert target.current("id", "a", "b") == newest(changes)
