"""The newest records of a quarantine, read without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from topiclake.config.pipeline import REPLAYS
from topiclake.errors import StorageError
from workbench.dashboard.delta_log import data_files, named_refusals, open_table

if TYPE_CHECKING:
    from datetime import datetime

    from deltalake import DeltaTable

RECORDS = 20
PARTITIONS = 50
#: Of key and value; as many of the value as `workbench quarantine show` prints.
FIRST_BYTES = 37
#: Bytes of the newest files to search: first a few, then as many as a page may read.
SEARCHED = (16 * 2**20, 256 * 2**20)
_TIME_COLUMN = "quarantined_at"
#: Columns that identify a row of a quarantine, as in `topiclake.ingest.quarantine.replay_claims`, which
#: needs Spark.
CLAIM_KEY = 'topic, "partition", "offset", quarantined_at'
_NEWEST_FIRST = f'{_TIME_COLUMN} DESC, topic, "partition", "offset" DESC'
#: One batch of rows at a time: a value may have a megabyte.
_FRUGAL = {"datafusion.execution.batch_size": "256", "datafusion.execution.target_partitions": "1"}


def read_records(path: str, reason: str) -> dict[str, Any]:
    """Read the newest records of a reason from the quarantine at `path`.

    Returns:
        `records` (the newest first), `is_all` (whether older files were searched as well) and `partitions`
        (`topic`, `partition`, `records`). The last is `None` if the table is too large to count.

    Raises:
        StorageError: It cannot be read from here.
    """
    with named_refusals(path):
        table, claims = open_table(path), _claims(path)
        files = data_files(table)
        for budget in SEARCHED:
            since, is_all = _since(files, budget)
            records = _newest(table, claims, reason, since)
            if is_all or len(records) == RECORDS:
                break
        small = (pc.sum(files["size_bytes"]).as_py() or 0) <= SEARCHED[-1]
        partitions = _partitions(table, reason) if small else None
    return {"records": records, "is_all": is_all, "partitions": partitions}


def _since(files: Any, budget: int) -> tuple[datetime | None, bool]:  # noqa: ANN401
    """Return the time after which all records are in the newest `budget` bytes, and whether that is all."""
    if (pc.sum(files["size_bytes"]).as_py() or 0) <= budget:
        return None, True
    if f"max.{_TIME_COLUMN}" not in files.column_names or files[f"max.{_TIME_COLUMN}"].null_count:
        raise StorageError(
            "it is too large to look through from here",
            "python -m workbench quarantine show",
            reason="too_large",
        )
    newest = files.sort_by([(f"max.{_TIME_COLUMN}", "descending")])
    count = max(1, pc.sum(pc.less_equal(pc.cumulative_sum(newest["size_bytes"]), budget)).as_py())
    return (newest[f"max.{_TIME_COLUMN}"][count].as_py(), False) if count < newest.num_rows else (None, True)


def _claims(path: str) -> DeltaTable | None:
    """Open the claims of replays on rows of the quarantine at `path`; None before there was one."""
    from deltalake.exceptions import TableNotFoundError

    try:
        return open_table(path + REPLAYS)
    except TableNotFoundError:
        return None


def _newest(
    table: DeltaTable, claims: DeltaTable | None, reason: str, since: datetime | None
) -> list[dict[str, Any]]:
    after = f" AND {_TIME_COLUMN} > TIMESTAMP '{since.isoformat()}'" if since else ""
    newest = (
        f"SELECT * FROM records WHERE reason = {_literal(reason)}{after}"  # noqa: S608
        f" ORDER BY {_NEWEST_FIRST} LIMIT {RECORDS}"
    )
    columns = f'topic, "partition", "offset", "timestamp", detail, {_TIME_COLUMN}'
    if claims is None:
        replayed, source = "false", f"({newest})"
    else:
        replayed, source = "replayed_at IS NOT NULL", f"({newest}) LEFT JOIN claims USING ({CLAIM_KEY})"
    rows = _query(
        f"SELECT {columns}, {replayed} AS is_replayed, {_first('key')}, {_first('value')}"  # noqa: S608
        f" FROM {source} ORDER BY {_NEWEST_FIRST}",
        records=table,
        claims=claims,
    )
    return [_record(row) for row in rows]


def _first(name: str) -> str:
    spelled = f"encode({name}, 'hex')"
    return f"left({spelled}, {2 * FIRST_BYTES}) AS {name}, length({spelled}) / 2 AS {name}_length"


def _partitions(table: DeltaTable, reason: str) -> list[dict[str, Any]]:
    counted = (
        'SELECT topic, "partition", count(*) AS records FROM records'  # noqa: S608
        f' WHERE reason = {_literal(reason)} GROUP BY topic, "partition"'
        f' ORDER BY records DESC, topic, "partition" LIMIT {PARTITIONS}'
    )
    return _query(counted, records=table)


def _query(sql: str, **tables: DeltaTable | None) -> list[dict[str, Any]]:
    from deltalake import QueryBuilder

    builder = QueryBuilder(_FRUGAL)
    for name, table in tables.items():
        if table is not None:
            builder = builder.register(name, table)
    return list(pa.table(builder.execute(sql)).to_pylist())


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _record(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("topic", "partition", "offset", "detail", "is_replayed")},
        "timestamp": _seconds(row["timestamp"]),
        "at": _seconds(row[_TIME_COLUMN]),
        "key": _bytes(row, "key"),
        "value": _bytes(row, "value"),
    }


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at else None


def _bytes(row: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the first bytes as hex and as text, and the length of all bytes."""
    if row[name] is None:
        return None
    text = bytes.fromhex(row[name]).decode("utf-8", "replace")
    shown = "".join(character if character.isprintable() else "�" for character in text)
    return {"hex": row[name], "text": shown, "length": row[f"{name}_length"]}
