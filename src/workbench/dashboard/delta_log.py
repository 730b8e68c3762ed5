"""The size and the history of a Delta table, read from its log without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from topiclake.config.table_name import is_name, quoted
from topiclake.errors import StorageError

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Versions that are listed, and those of the chart.
VERSIONS = 20
POINTS = 100
#: Delta's auto compaction merges files of a partition below half of 128 MB, from 50 on
#: (`spark.databricks.delta.autoCompact.maxFileSize` and `minNumFiles`). A table that a
#: stream writes reaches that number every few minutes. The page reports twice the number of files, of a
#: quarter of the size.
MERGED_BELOW = 64 * 2**20
SMALL_FILES = 100
SMALL_BYTES = 16 * 2**20
#: For remote stores: the page waits no longer.
_PATIENCE = {"timeout": "10s", "connect_timeout": "5s", "max_retries": "2", "retry_timeout": "10s"}
_COLOUR = re.compile(r"\x1b\[\d*m")
#: A login in an address: a query, such as a shared access signature, or user and password.
_LOGIN = re.compile(r"\?\S+|(?<=://)[^/@\s]*:[^/@\s]*@")
#: Names in Delta's operation metrics for added files, removed files, written rows and written bytes.
_ADDED = ("numFiles", "numAddedFiles", "numTargetFilesAdded", "numRestoredFiles")
_REMOVED = ("numRemovedFiles", "numTargetFilesRemoved")
_ROWS = ("numOutputRows", "numUpdatedRows")
_BYTES = ("numOutputBytes", "numAddedBytes", "numTargetBytesAdded")
#: Of a MERGE. Its written rows also have copies of the other rows in the same files.
_CHANGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


def read_table(path: str, name: str = "") -> dict[str, Any]:
    """Read the size of the table at `path`, and its newest versions.

    Args:
        path: The table, as Spark names its folder.
        name: Its name in a catalog, if it has one.

    Returns:
        `version`, `files`, `bytes`, `optimize` (the command), `versions` (the newest first) and `points` (of
        the chart, the oldest first). The number `rows` is `None` if statistics of a file are missing. If
        `rows_at_most` is true, the table may have deletion vectors. Then `rows` includes deleted rows. The
        files and bytes that `OPTIMIZE` would merge are in `small`, which is `None` if there are too few.

    Raises:
        StorageError: It cannot be read from here.
    """
    with named_refusals(path):
        table = open_table(path)
        files = data_files(table)
        history = table.history(POINTS)
        features = table.protocol().reader_features or []
    records = files["num_records"]
    versions = [_version(commit) for commit in history]
    return {
        "version": table.version(),
        "files": files.num_rows,
        "bytes": pc.sum(files["size_bytes"]).as_py() or 0,
        "rows": None if records.null_count else pc.sum(records).as_py() or 0,
        "rows_at_most": "deletionVectors" in features,
        "small": small_files(files),
        "optimize": f"OPTIMIZE {_sql_name(name or path)}",
        "versions": versions[:VERSIONS],
        "points": _points(files.num_rows, versions),
    }


def open_table(path: str) -> DeltaTable:
    """Open the table at `path`, as Spark names it."""
    from deltalake import DeltaTable

    folder = _local_folder(path)
    if folder is None:
        return DeltaTable(path, storage_options=_PATIENCE)
    if unquote(folder) != folder:
        # deltalake would decode the name, and open another folder.
        raise _refused(path, "its name has a % before two digits, which deltalake does not read", "name")
    return DeltaTable(folder)


def data_files(table: DeltaTable) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a row for each data file: `size_bytes`, `num_records`, and `partition.…`, `min.…`, `max.…`."""
    return pa.table(table.get_add_actions(flatten=True))


def small_files(files: Any) -> dict[str, int] | None:  # noqa: ANN401
    """Return how many files `OPTIMIZE` would merge, and their bytes; None where it would not be worth it."""
    keys = [name for name in files.column_names if name.startswith("partition.")]
    sizes = files.select([*keys, "size_bytes"])
    sizes = sizes.filter(pc.less(sizes["size_bytes"], MERGED_BELOW))
    groups = sizes.group_by(keys).aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
    # Files of different partitions are never merged.
    groups = groups.filter(pc.greater(groups["size_bytes_count"], 1))
    number = pc.sum(groups["size_bytes_count"]).as_py() or 0
    size = pc.sum(groups["size_bytes_sum"]).as_py() or 0
    return {"files": number, "bytes": size} if number > SMALL_FILES and size < number * SMALL_BYTES else None


@contextmanager
def named_refusals(path: str) -> Iterator[None]:
    """Turn errors of deltalake into one line without secrets, and a remedy."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        if "Unknown scheme" in str(error):
            raise _refused(path, f"deltalake does not know {path.partition(':')[0]}:", "scheme") from None
        problem = "there is no Delta table any more, or none that this process may see"
        raise _refused(path, problem, "missing") from None
    except (DeltaError, OSError, ValueError) as error:
        raise _refused(path, _message(error), "unreadable") from None


def _refused(path: str, problem: str, reason: str) -> StorageError:
    return StorageError(
        f"it cannot be read from here: {problem}",
        f"run in a notebook: DESCRIBE DETAIL {_sql_name(path)}",
        reason=reason,
        detail=problem,
    )


def _message(error: Exception) -> str:
    """Return the cause: the error's lines before its stack."""
    lines = _COLOUR.sub("", str(error)).split("\n   0: ")[0].splitlines()
    message = ": ".join(line.strip(" ↳") for line in lines if line.strip())
    return _LOGIN.sub("…", message)[:300]


def _local_folder(path: str) -> str | None:
    """Return the folder that Spark reads for `path`; None for a store elsewhere."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return path if path.startswith("/") else None


def _sql_name(path: str) -> str:
    return quoted(path) if is_name(path) else f"delta.`{path.replace('`', '``')}`"


def _version(commit: Mapping[str, Any]) -> dict[str, Any]:
    metrics = commit.get("operationMetrics")
    numbers = metrics or {}
    # Metrics may be turned off. A commit that changes no file has none of these metrics.
    defaults = {"added": 0, "removed": 0} if metrics is not None else {"added": None, "removed": None}
    return {
        "version": commit["version"],
        "at": commit.get("timestamp", 0) / 1000,
        "operation": commit.get("operation", ""),
        "added": _number(numbers, _ADDED, defaults["added"]),
        "removed": _number(numbers, _REMOVED, defaults["removed"]),
        "rows": _changed_rows(numbers),
        "bytes": _number(numbers, _BYTES, None),
        "who": _author(commit),
    }


def _changed_rows(metrics: Mapping[str, Any]) -> int | None:
    changed = [int(metrics[name]) for name in _CHANGED if name in metrics]
    return sum(changed) if changed else _number(metrics, _ROWS, None)


def _number(metrics: Mapping[str, Any], names: tuple[str, ...], otherwise: int | None) -> int | None:
    return next((int(metrics[name]) for name in names if name in metrics), otherwise)


def _author(commit: Mapping[str, Any]) -> str:
    """Return the batch that Topiclake wrote into the commit, else the user or the engine of the commit."""
    try:
        metadata = json.loads(commit["userMetadata"])
        return f"{metadata.get('pipeline') or metadata['writer']}, batch {metadata['batch_id']}"
    except (KeyError, TypeError, ValueError, AttributeError):
        return str(commit.get("userName") or commit.get("engineInfo") or "")


def _points(files: int, versions: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the number of files of each version, counted back from the newest while commits have metrics."""
    points: list[tuple[int, int]] = []
    for commit in versions:
        points.append((commit["version"], files))
        if commit["added"] is None:
            break
        files += commit["removed"] - commit["added"]
        if files < 0:
            break
    points.reverse()
    return {"version": [version for version, _ in points], "files": [number for _, number in points]}
