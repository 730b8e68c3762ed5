"""A sink of files in a format that `tl.start_files` does not write: ORC, Avro or CSV."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

import topiclake as tl
from topiclake.errors import ConfigError

FORMATS = ("orc", "avro", "csv")


@dataclass(frozen=True)
class FileBatches(tl.Sink):
    """Writes each micro-batch into a folder of its number, so that a repeated batch replaces itself.

    Attributes:
        folder: The folder, as Spark reads it; for one query alone.
        file_format: One of `FORMATS`.
    """

    folder: str
    file_format: str

    def destination(self) -> str:
        """Return the folder."""
        return self.folder

    def write(self, rows: DataFrame, batch: tl.SinkBatch) -> None:
        """Write the rows of a batch; CSV has no nested columns, so they become JSON."""
        writer = flat(rows).write.option("header", "true") if self.file_format == "csv" else rows.write
        writer.format(self.file_format).mode("overwrite").save(f"{self.folder}/batch={batch.number}")


def file_batches(settings: tl.Settings, *, path: str, file_format: str) -> FileBatches:
    """Return a sink of `tl.start_sinks` that writes ORC, Avro or CSV files, each batch once.

    Args:
        settings: The store.
        path: The folder. A new checkpoint needs a new one.
        file_format: `orc`, `avro` or `csv`.

    Raises:
        ConfigError: The format is another one.
    """
    if file_format not in FORMATS:
        raise ConfigError(
            f"file_format is {file_format!r}; allowed: {', '.join(FORMATS)}",
            "pass file_format='orc'",
            parameter="file_format",
            found=file_format,
            allowed=FORMATS,
        )
    return FileBatches(tl.resolve(settings.storage, path), file_format)


def flat(rows: DataFrame) -> DataFrame:
    """Return the rows with nested columns as JSON, for files without nesting."""
    columns = (
        F.to_json(field.name).alias(field.name)
        if isinstance(field.dataType, StructType | ArrayType | MapType)
        else F.col(field.name)
        for field in rows.schema.fields
    )
    return rows.select(*columns)
