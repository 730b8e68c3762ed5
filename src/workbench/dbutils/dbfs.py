"""`dbfs:` paths on a laptop: files below the workbench's home, and the same ones for Spark.

Hadoop's view of several file systems as one serves the scheme: mounts are links, all else is in one folder.
Source: https://hadoop.apache.org/docs/r3.4.2/hadoop-project-dist/hadoop-hdfs/ViewFsOverloadScheme.html
"""

from __future__ import annotations

from pathlib import Path

_LINK = "fs.viewfs.mounttable.default.link."
_TARGETS = {
    "file": "org.apache.hadoop.fs.LocalFileSystem",
    "s3a": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "wasb": "org.apache.hadoop.fs.azure.NativeAzureFileSystem",
    "wasbs": "org.apache.hadoop.fs.azure.NativeAzureFileSystem$Secure",
    "abfs": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "abfss": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
}


def root(home_folder: Path) -> Path:
    """Return the folder that `dbfs:/` names, where nothing is mounted."""
    return home_folder / "dbfs"


def spark_settings(home_folder: Path) -> dict[str, str]:
    """Return the settings with which Spark must start, so that it reads and writes `dbfs:` paths."""
    hadoop = {
        "fs.dbfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        # A cached file system would not see later mounts.
        "fs.dbfs.impl.disable.cache": "true",
        "fs.viewfs.mounttable.default.linkFallback": root(home_folder).absolute().as_uri(),
        **{f"fs.viewfs.overload.scheme.target.{scheme}.impl": name for scheme, name in _TARGETS.items()},
    }
    # Delta's default for an unknown scheme needs another interface of Hadoop.
    log_store = {"spark.delta.logStore.dbfs.impl": "io.delta.storage.LocalLogStore"}
    return {f"spark.hadoop.{key}": value for key, value in hadoop.items()} | log_store


def link(mount_point: str) -> str:
    """Return the setting that makes a mount point a link."""
    return f"{_LINK}{mount_point}"
