"""Delta tables: create, append once, read.

A table has a location: a path, or a name in a catalog (`config/table_name`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_fixed

from topiclake.config import table_name
from topiclake.delta import catalog
from topiclake.errors import StorageError
from topiclake.local_frame import local_frame

#: After this time Delta forgets the batches of a writer. Without this property it never does.
FORGETS_WRITERS = "delta.setTransactionRetentionDuration"

Result = TypeVar("Result")

_CONFLICT = (
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "DELTA_FAILED_TO_MERGE_FIELDS",
    "DELTA_CONCURRENT",
)

#: Number of attempts to write a table while other writers are faster.
_ATTEMPTS = 5
#: Error classes of Delta for rows that break a constraint of the table.
_BROKEN = (
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    "DELTA_MISSING_NOT_NULL_COLUMN_VALUE",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
)

#: Error classes of Delta for a folder that has files but no table.
_MERE_FILES = ("DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION", "DELTA_MISSING_DELTA_TABLE")
#: Error classes of Delta for a table that does not exist.
_NO_TABLE = (
    "PATH_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_SCHEMA_NOT_SET",
    "DELTA_READ_TABLE_WITHOUT_COLUMNS",
    "TABLE_OR_VIEW_NOT_FOUND",
)
#: The reason of an error for such a folder.
_FILES = "files"
#: Error class for a table that another writer has created first.
_EXISTS = "TABLE_OR_VIEW_ALREADY_EXISTS"
#: Numbers of commits that a search reads: reading an old table's whole history (None) takes seconds.
_NEWEST_FIRST = (10, None)
#: Time limit for another writer that is creating the table (s): until its commit there are only files.
_CREATION_SECONDS = 5


def ensure_table(
    spark: SparkSession,
    path: str,
    schema: StructType,
    properties: Mapping[str, str],
    comment: str = "",
    cluster_by: Sequence[str] = (),
) -> None:
    """Create an empty Delta table at `path` if it does not exist; an existing table does not change.

    A name becomes a managed table.

    Args:
        spark: The session.
        path: Location of the table.
        schema: Its columns.
        properties: Its table properties.
        comment: Description of the table.
        cluster_by: Columns whose similar values Delta puts into the same files.

    Raises:
        StorageError: The folder has files, but no table. Or the schema of the name does not exist.
    """
    # Delta first looks for a table, then for files. A table that another writer creates between the two
    # checks appears as a folder with files only.
    tries = Retrying(
        retry=retry_if_exception(_was_slower),
        stop=stop_after_delay(_CREATION_SECONDS),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    try:
        with catalog.catalog_errors(path):
            tries(_create, spark, path, schema, properties, comment, cluster_by)
    except PySparkException as error:
        if error.getCondition() in _MERE_FILES:
            is_name = table_name.is_name(path)
            raise (
                _unregistered(path, catalog.folder(spark, path)) if is_name else _mere_files(path)
            ) from None
        raise


def _unregistered(name: str, folder: str) -> StorageError:
    return StorageError(
        f"the catalog has no table {name}, but its folder {folder} has files",
        f"if they are its table: CREATE TABLE {table_name.quoted(name)} USING delta LOCATION '{folder}'; "
        "otherwise remove the folder",
        table=name,
        folder=folder,
        reason=_FILES,
    )


def _mere_files(path: str) -> StorageError:
    return StorageError(
        f"{path} holds files, but no Delta table", "set another table_path", table=path, reason=_FILES
    )


def _was_slower(error: BaseException) -> bool:
    if isinstance(error, StorageError):
        return error.fields.get("reason") == _FILES
    return is_conflict(error) or (
        isinstance(error, PySparkException) and error.getCondition() in (*_MERE_FILES, _EXISTS)
    )


def _create(
    spark: SparkSession,
    path: str,
    schema: StructType,
    properties: Mapping[str, str],
    comment: str,
    cluster_by: Sequence[str],
) -> None:
    if columns(spark, path):
        return
    if table_name.is_name(path):
        catalog.require_allowed(spark, path)
    described = f" COMMENT {literal(comment)}" if comment else ""
    clustered = f" CLUSTER BY ({', '.join(map(quoted, cluster_by))})" if cluster_by else ""
    listed = f" TBLPROPERTIES ({_pairs(properties)})" if properties else ""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {catalog.identifier(path)} ({_fields(schema)}) USING delta"
        f"{clustered}{described}{listed}"
    )
    # If the folder has any file, Delta's command does nothing.
    if columns(spark, path):
        return
    empty, remaining = local_frame(spark, [], schema), properties
    if table_name.is_name(path):
        # The user has created an external table without columns.
        empty.writeTo(table_name.quoted(path)).option("mergeSchema", "true").append()
    elif _has_log(spark, path):
        # A writer was killed after it created the log's folder and before its first commit. Delta cannot
        # create a table there, but it can append.
        options = {name: value for name, value in properties.items() if _is_option(name)}
        empty.write.format("delta").mode("append").options(**options).save(path)
        remaining = {name: properties[name] for name in properties.keys() - options.keys()}
    else:
        raise _mere_files(path)
    set_properties(spark, path, remaining)
    if clustered:
        spark.sql(f"ALTER TABLE {catalog.identifier(path)}{clustered}")


def _has_log(spark: SparkSession, path: str) -> bool:
    try:
        # Spark Connect looks for the folder only when it needs the columns.
        _ = spark.read.format("binaryFile").load(f"{path}/_delta_log").schema
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


def _fields(schema: StructType, colon: str = "") -> str:
    """Return columns or fields for SQL."""
    texts = []
    for field in schema:
        comment, required = field.metadata.get("comment"), "" if field.nullable else " NOT NULL"
        described = f" COMMENT {literal(comment)}" if comment else ""
        texts.append(f"{quoted(field.name)}{colon} {_type(field.dataType)}{required}{described}")
    return ", ".join(texts)


def _type(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return f"STRUCT<{_fields(kind, ':')}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    return kind.simpleString()


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def _is_option(name: str) -> bool:
    """Return whether an append that creates a table accepts this property as an option."""
    return name.lower().startswith("delta.")


def append_once(
    rows: DataFrame, path: str, *, writer: str, batch_id: int, commit: Mapping[str, object]
) -> None:
    """Append `rows` to the table at `path`, unless `writer` has appended batch `batch_id` already.

    Delta keeps the last version of each writer (`txnAppId`, `txnVersion`), so a batch that Spark repeats
    after a crash changes nothing. New columns are added to the table.

    Args:
        rows: The rows to append.
        path: Location of the Delta table, which is created if it does not exist.
        writer: Name of the writer. It must change when batch ids start again from 0.
        batch_id: Number of the batch, which rises with each batch of the writer.
        commit: Metadata that the table's history keeps as JSON (`userMetadata`), with writer and batch.
    """
    _write_once(rows, path, "append", writer, batch_id, commit)


def replace_once(rows: DataFrame, path: str, *, writer: str, batch_id: int) -> None:
    """Replace the rows of the table at `path` by `rows`, unless `writer` has done so with batch `batch_id`.

    Args as for `append_once`.
    """
    _write_once(rows, path, "overwrite", writer, batch_id, {})


def replace_where(rows: DataFrame, path: str, condition: str) -> None:
    """Replace the rows for which a condition in SQL is true, in one commit; `path` is no name."""
    rows.write.format("delta").mode("overwrite").option("replaceWhere", condition).save(path)


def _write_once(
    rows: DataFrame, path: str, mode: str, writer: str, batch_id: int, commit: Mapping[str, object]
) -> None:
    options = {
        "mergeSchema": "true",
        "txnAppId": writer,
        "txnVersion": str(batch_id),
        "userMetadata": json.dumps({"writer": writer, "batch_id": batch_id} | dict(commit)),
    }
    if not table_name.is_name(path):
        rows.write.format("delta").mode(mode).options(**options).save(path)
        return
    try:
        _write_named(rows, path, mode, options)
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        ensure_table(rows.sparkSession, path, nullable(rows), {})
        _write_named(rows, path, mode, options)


def _write_named(rows: DataFrame, name: str, mode: str, options: Mapping[str, str]) -> None:
    writer = rows.writeTo(table_name.quoted(name)).options(**options)
    if mode == "append":
        writer.append()
    else:
        # saveAsTable would replace the table, with its properties.
        writer.overwrite(F.lit(True))


def is_committed(spark: SparkSession, path: str, attempt: str) -> bool:
    """Return whether a commit of the table at `path` names this `attempt`.

    After `append_once`, False means that the table already had the batch. Then Spark executed nothing, and
    an Observation on the rows never gets its metrics: waiting for them would never end.
    """
    return any(_commits(spark, path, limit, attempt=attempt) for limit in _NEWEST_FIRST)


def commit_of(spark: SparkSession, path: str, *, writer: str, batch_id: int) -> dict[str, Any] | None:
    """Return the metadata that `writer` wrote into the history with a batch, and the number of its `rows`.

    None: no such commit exists, or Delta has cleaned up the history since.
    """
    if not is_table(spark, path):
        return None
    commits = _commits(spark, path, None, writer=writer, batch_id=str(batch_id))
    if not commits:
        return None
    metadata, _, rows = commits[0]
    return {**json.loads(metadata), "rows": int(rows or 0)}


def version_of(spark: SparkSession, path: str, *, writer: str, batch_id: int) -> int | None:
    """Return the version that `writer` created with batch `batch_id`, or None if the history lacks it.

    The session's last commit may be another one, because Delta compacts small files after a commit.
    """
    for limit in _NEWEST_FIRST:
        if commits := _commits(spark, path, limit, writer=writer, batch_id=str(batch_id)):
            return commits[0][1]
    return None


def _commits(
    spark: SparkSession, path: str, limit: int | None, **metadata: str
) -> list[tuple[str, int, str | None]]:
    commits = catalog.history(spark, path, limit)
    for name, value in metadata.items():
        commits = commits.where(F.get_json_object("userMetadata", f"$.{name}") == value)
    columns = "userMetadata", "version", F.col("operationMetrics")["numOutputRows"]
    return [(row[0], row[1], row[2]) for row in commits.select(*columns).limit(1).collect()]


def columns(spark: SparkSession, path: str) -> StructType | None:
    """Return the columns of the table at `path`, or None if the table does not exist."""
    # Checking for the table first would cost another call of an object store.
    try:
        return read(spark, path).schema
    except AnalysisException as error:
        if error.getCondition() in _NO_TABLE:
            return None
        raise


def properties(spark: SparkSession, path: str) -> dict[str, str]:
    """Return the table properties of the table at `path`."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {catalog.identifier(path)}").collect()
    return {row["key"]: row["value"] for row in rows}


def require_lasting_writers(path: str, properties: Mapping[str, str]) -> None:
    """Check that a table keeps the numbers of its batches for ever: a restart may need them at any time.

    Raises:
        StorageError: Its property `delta.setTransactionRetentionDuration` is set.
    """
    if duration := properties.get(FORGETS_WRITERS):
        raise StorageError(
            f"the table at {path} has {FORGETS_WRITERS} = {duration}: a query that is started later than "
            "that could append a batch once more",
            f"ALTER TABLE {catalog.identifier(path)} UNSET TBLPROPERTIES ('{FORGETS_WRITERS}')",
            table=path,
            property=FORGETS_WRITERS,
            found=duration,
        )


def nullable(rows: DataFrame) -> StructType:
    """Return the columns of `rows` for a table, with their comments; each is nullable.

    For a column that is not nullable, Delta adds a step to the plan that checks every row.
    """
    fields = []
    for field in rows.schema:
        comment = {key: text for key, text in field.metadata.items() if key == "comment"}
        fields.append(StructField(field.name, field.dataType, metadata=comment))
    return StructType(fields)


def set_properties(spark: SparkSession, path: str, properties: Mapping[str, str]) -> None:
    """Set table properties of the table at `path`."""
    if properties:
        spark.sql(f"ALTER TABLE {catalog.identifier(path)} SET TBLPROPERTIES ({_pairs(properties)})")


def add_columns(spark: SparkSession, path: str, new_columns: StructType) -> None:
    """Add columns to the table at `path`."""
    spark.sql(f"ALTER TABLE {catalog.identifier(path)} ADD COLUMNS ({_fields(new_columns)})")


def quoted(name: str) -> str:
    """Return the name of a column, or a path, quoted for SQL."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as a literal of SQL.

    Spark replaces `${…}` by variables and settings, which may be secrets, also within literals.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{")
    return f"'{escaped}'"


def struct(fields: Mapping[str, str]) -> str:
    """Return a struct in SQL, from an expression for each of its fields."""
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"


def is_conflict(error: BaseException) -> bool:
    """Return whether another writer was faster, so that the same write on the new version succeeds."""
    return _has_code(error, _CONFLICT)


def write_with_retries(write: Callable[[], None], forget: Callable[[], None]) -> None:
    """Write, and repeat the write if another writer has altered the table or added a constraint meanwhile.

    Args:
        write: Writes; it must be safe to repeat.
        forget: Discards the cached state of the table before each repetition.
    """
    tries = Retrying(
        retry=retry_if_exception(_is_outdated),
        stop=stop_after_attempt(_ATTEMPTS),
        before_sleep=lambda _: forget(),
        reraise=True,
    )
    tries(write)


def retry_conflicts(write: Callable[[], Result]) -> Result:
    """Write, and repeat the write while other writers are faster; return what `write` returns.

    Args:
        write: Writes; it must be safe to repeat.
    """
    tries = Retrying(retry=retry_if_exception(is_conflict), stop=stop_after_attempt(_ATTEMPTS), reraise=True)
    return tries(write)


def _is_outdated(error: BaseException) -> bool:
    """Return whether the error shows that the table has changed since it was read."""
    return _has_code(error, (*_CONFLICT, *_BROKEN))


def _has_code(error: BaseException, codes: Sequence[str]) -> bool:
    return isinstance(error, (PySparkException, Py4JError)) and any(code in str(error) for code in codes)


def is_table(spark: SparkSession, path: str) -> bool:
    """Return whether a Delta table exists at `path`; a wrong credential raises Spark's error."""
    if table_name.is_name(path):
        return catalog.exists(spark, path)
    return columns(spark, path) is not None


def read(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """Read the newest version of the table at `path`, or `version`."""
    reader = spark.read if version is None else spark.read.option("versionAsOf", version)
    if table_name.is_name(path):
        return reader.table(table_name.quoted(path))
    return reader.format("delta").load(path)


def read_stream(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    """Read the table at `path` as a stream, with options of Delta's source."""
    reader = spark.readStream.options(**options)
    if table_name.is_name(path):
        return reader.table(table_name.quoted(path))
    return reader.format("delta").load(path)


def as_json(rows: DataFrame) -> list[dict[str, Any]]:
    """Collect rows as JSON objects, with nulls; times are in ISO 8601 with their zone."""
    # Spark writes times in the session's zone and names the zone. Python uses the machine's zone, unnamed.
    row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return [json.loads(text) for (text,) in rows.select(row).collect()]


def history(spark: SparkSession, path: str) -> DataFrame:
    """Return the table's commits, newest first.

    Returns:
        `version BIGINT, timestamp TIMESTAMP, operation STRING, rows BIGINT, batch STRING`; `batch` is the
        metadata that Topiclake wrote into the commit.
    """
    commits = catalog.history(spark, path)
    rows = F.col("operationMetrics")["numOutputRows"].cast("bigint").alias("rows")
    return commits.select("version", "timestamp", "operation", rows, F.col("userMetadata").alias("batch"))


def latest_version(spark: SparkSession, path: str) -> int:
    """Return the newest version of the table at `path`."""
    return int(catalog.history(spark, path, 1).select("version").collect()[0][0])
