"""Blob storage at a mount point, the same on Databricks and elsewhere."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from topiclake.config import table_name
from topiclake.config.storage import SOURCES, StorageSettings, hadoop_address, leads_out, without_login
from topiclake.errors import StorageError, TopiclakeError
from topiclake.session import is_databricks
from topiclake.storage import expiry
from topiclake.storage.access import hadoop_settings, open_store

_LOG = logging.getLogger(__name__)
_URI = re.compile(r"[a-zA-Z][\w+.-]*:")
#: In addition to `SOURCES`, on Databricks.
_DBFS = "dbfs:/"
_SALT = os.urandom(32)
#: By mount point: the fingerprint of the settings that this process set, or with which it could list it.
_marks: dict[str, bytes] = {}
#: The `dbutils` of the last call of `mount`, whose mounts resolve paths; a process has one.
_dbutils: Any = None


def mount(dbutils: Any, storage: StorageSettings, spark: SparkSession | None = None) -> None:  # noqa: ANN401 (the platform's own)
    """Make `storage.source` available at `storage.mount_point` in paths.

    The source is mounted there unless it already is with this credential. With `mounted: false`, `spark` gets
    the settings that open it instead. A volume needs neither. If a token ends soon, a warning is logged.
    The process keeps `dbutils`: every function that accepts a path looks up its mounts.

    Args:
        dbutils: The platform's, or the workbench's. None: that of an earlier call, if any.
        storage: The source and its credentials.
        spark: The session; needed for a URI with `mounted: false`.

    Raises:
        StorageError: Another source is mounted there, mounting failed, or the token is not valid now.
        ConfigError: A secret cannot be read, and the source is not mounted yet.

    Example:
        >>> tl.mount(dbutils, settings.storage, spark)
    """
    global _dbutils
    if dbutils is not None:
        _dbutils = dbutils
    try:
        settings = hadoop_settings(storage)
    except Exception as error:
        # A process that only uses a mount needs neither the name of its secret nor access to it.
        if not (storage.is_mounted and _is_mounted(storage)):
            raise
        if storage.credentials:
            _LOG.warning("%s is used as it is mounted: %s", storage.mount_point, reason(error))
        return
    expiry.require_current(storage, settings)
    apply_credential(storage, settings, spark)


def apply_credential(
    storage: StorageSettings, settings: Mapping[str, str], spark: SparkSession | None
) -> None:
    """Set the settings that open `storage.source` in a mount, or in a session, unless it has them already.

    If the session holds a mount's settings, they are compared. Otherwise the mount's settings are known if
    this process set them. If not, as on Databricks, a mount that cannot be listed gets the settings again.

    Raises:
        StorageError: Another source is mounted there, mounting failed, or no call of `mount` had `dbutils`.
    """
    if not storage.is_mounted:
        _open(storage, settings, spark)
        return
    if not _is_mounted(storage):
        try:
            _change_mount(_dbutils.fs.mount, storage, settings)
        except Exception:
            # Two runs that start at the same time both find no mount, and one of them mounts first.
            if not _is_mounted(storage):
                raise
        else:
            return
    if settings and _is_stale(storage, settings, spark):
        _change_mount(_dbutils.fs.updateMount, storage, settings)


def _change_mount(
    change: Any,  # noqa: ANN401 (the platform's own)
    storage: StorageSettings,
    settings: Mapping[str, str],
) -> None:
    change(source=storage.source, mount_point=storage.mount_point, extra_configs=dict(settings))
    _marks[storage.mount_point] = _fingerprint(settings)


def reason(error: Exception) -> str:
    """Return the text of a Topiclake error, or only the class of another one, whose text is not known."""
    return str(error) if isinstance(error, TopiclakeError) else f"{type(error).__name__} of the platform"


def _is_mounted(storage: StorageSettings) -> bool:
    if _dbutils is None:
        raise StorageError(
            f"no dbutils was given that could mount {storage.source} at {storage.mount_point}",
            "call tl.mount(dbutils, settings.storage, spark), or set storage.mounted=false",
            mount_point=storage.mount_point,
            source=storage.source,
        )
    mounted = _mounts().get(storage.mount_point)
    if mounted is not None and _canonical(mounted) != _canonical(storage.source):
        raise StorageError(
            f"{storage.mount_point} is a mount of {mounted}, not of {storage.source}",
            f'call dbutils.fs.unmount("{storage.mount_point}"), or set another storage.mount_point',
            mount_point=storage.mount_point,
            mounted=mounted,
            source=storage.source,
        )
    return mounted is not None


def _is_stale(storage: StorageSettings, settings: Mapping[str, str], spark: SparkSession | None) -> bool:
    """Return whether the mount has another credential; see `apply_credential`."""
    current = {} if spark is None else {key: spark.conf.get(key, None) for key in settings}
    if any(value is not None for value in current.values()):
        return current != settings
    if storage.mount_point in _marks:
        return _marks[storage.mount_point] != _fingerprint(settings)
    try:
        _dbutils.fs.ls(storage.mount_point)
    except Exception:  # noqa: BLE001 (the same settings once more do no harm)
        return True
    _marks[storage.mount_point] = _fingerprint(settings)
    return False


def _fingerprint(settings: Mapping[str, str]) -> bytes:
    """Return a keyed hash of settings: it reveals nothing of them, and is comparable in this process only."""
    text = "\0".join(part for setting in sorted(settings.items()) for part in setting)
    return blake2b(text.encode(), key=_SALT).digest()


def _open(storage: StorageSettings, settings: Mapping[str, str], spark: SparkSession | None) -> None:
    if not settings:
        return
    if spark is None:
        raise StorageError(
            f"{storage.source} is not mounted, and no session was given that could open it",
            "call tl.mount(dbutils, settings.storage, spark)",
            source=storage.source,
        )
    open_store(spark, storage.source, settings)


def resolve(storage: StorageSettings, path: str) -> str:
    """Return the address that Spark reads for `path`.

    Databricks resolves mount points itself. Elsewhere, and for a source that is not mounted, the source
    replaces the mount point. Outside Databricks the path may begin with `dbfs:`. Any other path (a URI, a
    volume, a local folder) stays as it is, but `file:///folder` becomes `file:/folder`: for Delta these are
    two locations.

    Args:
        storage: The configured storage. Other mounts are known only after this process called `mount`.
        path: The path.

    Returns:
        The address, with its scheme; on Databricks, a path below a mount as it is.

    Raises:
        StorageError: The path leads out of its folder, or its scheme is not allowed, or it is the name of a
            table. Outside Databricks also: the path is below /mnt or begins with `dbfs:`, and no source is
            mounted there.

    Example:
        >>> tl.resolve(settings.storage, "/mnt/datalake/readings") == f"file:{folder}/readings"
        True
    """
    _require_allowed(path)
    if not is_databricks() and path.startswith(_DBFS):
        path = _without_dbfs(path)
    if path.startswith(("file:", "s3:")):
        return _as_spark_reads(path)
    is_own = not storage.is_mounted or (_dbutils is None and not is_databricks())
    if is_own and _is_within(path, storage.mount_point):
        return _as_spark_reads(storage.source.rstrip("/")) + path[len(storage.mount_point) :]
    if is_databricks() or not path.startswith("/mnt/"):
        return path
    mounts = {} if _dbutils is None else _mounts()
    for mount_point, source in mounts.items():
        if _is_within(path, mount_point):
            return _as_spark_reads(source.rstrip("/")) + path[len(mount_point) :]
    raise StorageError(
        f"{path} is below no mount; mounted: {', '.join(sorted(mounts)) or 'nothing'}",
        "mount first (storage.mount), or correct the path",
        path=path,
        mounted=tuple(sorted(mounts)),
    )


def resolve_table(storage: StorageSettings, location: str) -> str:
    """Return the location of a Delta table: a name as it is, or the address that Spark reads for a path.

    Args:
        storage: As for `resolve`.
        location: The name (`schema.table`, `catalog.schema.table`) or the path.

    Raises:
        StorageError: As `resolve`; or the path is in a volume, or is almost a name.
    """
    if table_name.is_name(location):
        return location
    if "." in location and not re.search("[/:]", location):
        raise StorageError(
            f"{location} is neither a path nor a name of two or three parts",
            "put a name with special characters into `…`; use ./<folder> for a path",
            path=location,
            reason="name",
        )
    address = resolve(storage, location)
    if address.removeprefix("dbfs:").startswith("/Volumes/"):
        raise StorageError(
            f"table {location} would be in the volume {address}: a volume is for files and checkpoints, and "
            "Unity Catalog cannot register a table there",
            "set table: <catalog>.<schema>.<table> in place of the path",
            table=address,
            path=location,
            reason="volume",
        )
    return address


def _without_dbfs(path: str) -> str:
    plain = "/" + path.removeprefix(_DBFS).lstrip("/")
    if not plain.startswith("/mnt/"):
        raise StorageError(
            f"{path} is a folder of Databricks, and this is not Databricks",
            "use a path below a mount, or file:///<folder>",
            path=path,
            reason="dbfs",
        )
    return plain


def _require_allowed(path: str) -> None:
    text = without_login(path)
    if table_name.is_name(path):
        raise StorageError(
            f"{path} is the name of a table, and files need a path",
            "use a path below a mount, or a URI",
            path=path,
            reason="name",
        )
    if leads_out(path):
        raise StorageError(
            f"{text} holds `..`, which leads out of its folder",
            "use a path without it",
            path=text,
            reason="leads_out",
        )
    forms = [form for form, _ in SOURCES.values()]
    if _URI.match(path) and not path.startswith(_DBFS) and not any(re.match(form, path) for form in forms):
        allowed = ", ".join(written for _, written in SOURCES.values())
        raise StorageError(
            f"{text} has a form that is not allowed",
            f"use one of {allowed}, or a path below a mount",
            path=text,
            reason="form",
        )


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def require_writable(path: str) -> None:
    """Raise a StorageError for a local folder that can be neither written nor created.

    Args:
        path: As `resolve` returns it: `file:/folder`, or a plain path, which on Databricks is not local.
    """
    if not path.startswith("file:") and (is_databricks() or not path.startswith("/")):
        return
    folder = Path(path.removeprefix("file:"))
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "cannot be written" if nearest.is_dir() else "is not a folder"
        raise StorageError(
            f"{path} cannot be used: {nearest} {problem}",
            "use a separate storage folder",
            path=path,
            folder=str(nearest),
            reason="not_writable" if nearest.is_dir() else "no_folder",
        )


def _as_spark_reads(source: str) -> str:
    """Return the address that Spark reads: a local folder is `file:/folder`, without percent-encoding."""
    folder = _local(source)
    if folder is not None:
        return f"file:{folder}"
    return source if is_databricks() else hadoop_address(source)


def _canonical(source: str) -> str:
    """Return one spelling of a source: the workbench stores a folder's address without symbolic links."""
    folder = _local(source)
    return hadoop_address(source.rstrip("/")) if folder is None else str(Path(folder).resolve())


def _local(source: str) -> str | None:
    """Return the local folder that a source names, or None; only in an address `%20` stands for a space."""
    if source.startswith("file:"):
        return "/" + unquote(source.removeprefix("file:")).lstrip("/")
    is_volume = source.startswith("/Volumes/")
    return "/" + source.lstrip("/") if source.startswith("/") and not is_volume else None


def _mounts() -> dict[str, str]:
    return {mount.mountPoint: mount.source for mount in _dbutils.fs.mounts()}
