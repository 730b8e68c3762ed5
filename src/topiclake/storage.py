"""Blob storage behind a mount point, the same on Databricks and elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from topiclake.errors import StorageError
from topiclake.settings import StorageSettings

_WASBS = re.compile(
    r"^wasbs?://(?P<container>[^@/]+)@(?P<account>[^/.]+)(?P<suffix>\.[^/]+)?(?P<folder>/.*)?$"
)
#: What Azure answers to a wrong or expired SAS token, and to one that lacks a permission.
_REFUSED = re.compile(
    r"failed to authenticate|not authorized|Authori[sz]ation\w*(?:Failure|Mismatch)|\b403\b"
)
_THROWN = re.compile(r"^(?:Caused by|:)?[: ]*[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)


def mount(dbutils: Any, storage: StorageSettings) -> str:  # noqa: ANN401 (the platform's own)
    """Mount `storage.source` at `storage.mount_point`, where it is not mounted already.

    Args:
        dbutils: The platform's, or the workbench's.
        storage: A local folder (`file:///…`), or `wasbs://<container>@<account>…/<folder>` with a SAS token.

    Returns:
        The mount point.

    Raises:
        StorageError: Something else is mounted there, the source's form is unknown, or mounting failed.
    """
    mounted = _mounts(dbutils).get(storage.mount_point)
    if mounted is not None and mounted.rstrip("/") == storage.source.rstrip("/"):
        return storage.mount_point
    if mounted is not None:
        raise StorageError(
            f"{storage.mount_point} is a mount of {mounted}, not of {storage.source}",
            f'dbutils.fs.unmount("{storage.mount_point}"), or another storage.mount_point',
        )
    dbutils.fs.mount(
        source=storage.source,
        mount_point=storage.mount_point,
        extra_configs=mount_configs(storage),
    )
    return storage.mount_point


def mount_configs(storage: StorageSettings) -> dict[str, str]:
    """Return the Hadoop settings that open `storage.source`: for wasbs, the container's SAS token.

    Source: https://learn.microsoft.com/azure/databricks/dbfs/mounts
    """
    if storage.source.startswith(("file:", "/")):
        return {}
    match = _WASBS.match(storage.source)
    if match is None:
        raise StorageError(
            f"{storage.source} cannot be mounted; allowed: file:///<folder> and "
            "wasbs://<container>@<account>.blob.core.windows.net/<folder>",
            "mend storage.source",
        )
    if storage.sas_token is None:
        raise StorageError(
            f"{storage.source} needs a SAS token", "storage.sas_token: '{{secrets/<scope>/<key>}}'"
        )
    host = match["account"] + (match["suffix"] or "")
    return {f"fs.azure.sas.{match['container']}.{host}": storage.sas_token.reveal().lstrip("?")}


def resolve(dbutils: Any, path: str, *, databricks: bool) -> str:  # noqa: ANN401
    """Return the address that Spark reads for `path`.

    Databricks resolves mount points by itself; elsewhere the mount's source is put in its place. Anything
    that is no path below a mount point (a URI, a volume, a local folder) stays as it is; but `file:///folder`
    becomes `file:/folder`, since Delta takes the two for two locations.

    Raises:
        StorageError: The path is below /mnt, and nothing is mounted there.
    """
    if path.startswith("file:"):
        return _as_spark_reads(path)
    if databricks or not path.startswith("/mnt/"):
        return path
    mounts = _mounts(dbutils)
    for mount_point, source in mounts.items():
        if path == mount_point or path.startswith(f"{mount_point}/"):
            return _as_spark_reads(source.rstrip("/")) + path[len(mount_point) :]
    raise StorageError(
        f"{path} is below no mount; mounted: {', '.join(sorted(mounts)) or 'nothing'}",
        "mount first (storage.mount), or mend the path",
    )


@contextmanager
def refusals_named(storage: StorageSettings, path: str) -> Iterator[None]:
    """Run what first touches `path`; when storage refuses it, raise one sentence and no stack trace.

    Args:
        storage: What the path's mount was made from.
        path: Resolved location of a table.

    Raises:
        StorageError: The SAS token is refused, or the location cannot be used.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        thrown = _THROWN.findall(str(error)) or [str(error)]
        why = re.sub(r"sig=[^&\s]+", "sig=[REDACTED]", " ".join(thrown[-1].split()))[:300].rstrip(".")
        if storage.sas_token is not None and _REFUSED.search(str(error)):
            raise StorageError(
                f"{storage.source} refuses the SAS token ({why})",
                f"renew the secret {storage.sas_token.name}; then, since the mount holds the old one, "
                f'dbutils.fs.unmount("{storage.mount_point}") and run again',
            ) from None
        raise StorageError(f"{path} cannot be used: {why}", "mend the storage, or the path") from None


def require_writable(path: str) -> None:
    """Raise a StorageError for a local folder (`file:`) that can be neither written nor created."""
    if not path.startswith("file:"):
        return
    folder = Path(path.removeprefix("file:"))
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "cannot be written" if nearest.is_dir() else "is not a folder"
        raise StorageError(f"{path} cannot be used: {nearest} {why}", "a storage folder of your own")


def _as_spark_reads(source: str) -> str:
    """Hadoop writes local folders `file:/folder`, and takes `%20` for a name with a percent sign."""
    if not source.startswith(("file:", "/")):
        return source
    return "file:/" + unquote(source.removeprefix("file:")).lstrip("/")


def _mounts(dbutils: Any) -> dict[str, str]:  # noqa: ANN401
    return {mount.mountPoint: mount.source for mount in dbutils.fs.mounts()}
