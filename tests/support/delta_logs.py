"""Delta tables without Spark: a log by hand, and quarantines by deltalake."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

BEGAN = datetime(2026, 1, 2, tzinfo=timezone.utc)


def write_log(
    folder: Path,
    commits: Sequence[Sequence[Mapping[str, Any]]],
    partitioned_by: Sequence[str] = (),
    features: Sequence[str] = (),
) -> Path:
    """Write a table's log: version 0 makes it, then one version for each of `commits`."""
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("n", "day")]
    schema = json.dumps({"type": "struct", "fields": fields})
    table = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    table |= {"partitionColumns": list(partitioned_by), "configuration": {}, "createdTime": 1}
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": list(features), "writerFeatures": list(features)}
    first = [{"protocol": protocol}, {"metaData": table}, made("CREATE")]
    for version, actions in enumerate([first, *commits]):
        (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return folder


def made(operation: str, at: int = 0, user: object = None, **metrics: int) -> dict[str, Any]:
    """Return what a commit tells of itself."""
    texts = {name: str(value) for name, value in metrics.items()}
    info = {"timestamp": at * 1000, "operation": operation, "operationMetrics": texts}
    return {"commitInfo": info | ({"userMetadata": json.dumps(user)} if user else {})}


def added(name: str, size: int, records: int | None = 10, **partition: str) -> dict[str, Any]:
    """Return the action that adds a data file, which there need not be."""
    file = {
        "path": name,
        "partitionValues": partition,
        "size": size,
        "modificationTime": 1,
        "dataChange": True,
    }
    return {"add": file | ({} if records is None else {"stats": json.dumps({"numRecords": records})})}


def write_quarantine(folder: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Append records to a quarantine, in a file of their own; each comes a second after the one before it."""
    binary, text = pa.binary(), pa.string()
    schema = pa.schema(
        [
            ("topic", text),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("key", binary),
            ("value", binary),
            ("reason", text),
            ("detail", text),
            ("quarantined_at", pa.timestamp("us", "UTC")),
        ]
    )
    usual = {"topic": "t", "partition": 0, "timestamp": BEGAN, "reason": "bad_magic", "detail": "byte 0"}
    rows = [usual | {"quarantined_at": BEGAN + timedelta(seconds=one["offset"])} | one for one in records]
    write_deltalake(str(folder), pa.Table.from_pylist(rows, schema=schema), mode="append")
    return folder
