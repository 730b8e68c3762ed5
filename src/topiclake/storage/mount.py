"""Blob storage behind a mount point, the same on Databricks and elsewhere."""

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

from topiclake.config.storage import SOURCES, StorageSettings, leads_out, without_login
from topiclake.errors import StorageError, TopiclakeError
from topiclake.session import is_databricks
from topiclake.storage import expiry
from topiclake.storage.access import hadoop_settings, open_store

_LOG = logging.getLogger(__name__)
_URI = re.compile(r"[a-zA-Z][\w+.-]*:")
#: Besides `SOURCES`, on Databricks.
_DBFS = "dbfs:/"
_SALT = os.urandom(32)
#: By mount point: a mark of the settings that this process gave it, or found it to work with.
_marks: dict[str, bytes] = {}
#: The `dbutils` that `mount` was given last, in which paths are looked up; a process has one.
_dbutils: Any = None


def mount(dbutils: Any, storage: StorageSettings, spark: SparkSession | None = None) -> str:  # noqa: ANN401 (the platform's own)
    """Make `storage.source` what `storage.mount_point` stands for in paths.

    It is mounted there, where it is not already with this credential; or, where it is not to be mounted,
    `spark` gets the settings that open it. A volume needs neither. A token that ends soon is warned about.
    The process remembers `dbutils`: every function that takes a path looks its mounts up in it.

    Args:
        dbutils: The platform's, or the workbench's. None: that of an earlier call, or none.
        storage: The source and what grants access to it.
        spark: The session; needed for a URI with `mounted: false`.

    Returns:
        The mount point.

    Raises:
        StorageError: Something else is mounted there, mounting failed, or the token has ended.
        ConfigError: A secret cannot be read, and nothing is mounted yet.

    Example:
        >>> tl.mount(dbutils, settings.storage, spark)
        '/mnt/datalake'
    """
    global _dbutils
    if dbutils is not None:
        _dbutils = dbutils
    try:
        settings = hadoop_settings(storage)
    except Exception as error:
        # Who only uses a mount need not name its secret, nor be allowed to read it.
        if not (storage.is_mounted and _is_mounted(storage)):
            raise
        if storage.credentials:
            _LOG.warning("%s is used as it is mounted: %s", storage.mount_point, reason(error))
        return storage.mount_point
    expiry.require_current(storage, settings)
    apply_credential(storage, settings, spark)
    return storage.mount_point


def apply_credential(
    storage: StorageSettings, settings: Mapping[str, str], spark: SparkSession | None
) -> None:
    """Give a mount, or a session, the settings that open `storage.source`; what it has already is left alone.

    Whether a mount has other ones: the session knows it where that is where mounts' settings are; else this
    process, where it gave them itself. On Databricks, where none can tell, a mount that cannot be listed is
    taken to have other ones.

    Raises:
        StorageError: Something else is mounted there, mounting failed, or `mount` was given no `dbutils`.
    """
    if not storage.is_mounted:
        _open(storage, settings, spark)
        return
    if not _is_mounted(storage):
        try:
            _change_mount(_dbutils.fs.mount, storage, settings)
        except Exception:
            # Two runs that begin at once both find nothing, and one is the first.
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
    """Return what may be told of an error: what the platform's own ones say is not known."""
    return str(error) if isinstance(error, TopiclakeError) else f"{type(error).__name__} of the platform"


def _is_mounted(storage: StorageSettings) -> bool:
    if _dbutils is None:
        raise StorageError(
            f"no dbutils was given that could mount {storage.source} at {storage.mount_point}",
            "tl.mount(dbutils, settings.storage, spark), or storage.mounted=false",
            mount_point=storage.mount_point,
            source=storage.source,
        )
    mounted = _mounts().get(storage.mount_point)
    if mounted is not None and _canonical(mounted) != _canonical(storage.source):
        raise StorageError(
            f"{storage.mount_point} is a mount of {mounted}, not of {storage.source}",
            f'dbutils.fs.unmount("{storage.mount_point}"), or another storage.mount_point',
            mount_point=storage.mount_point,
            mounted=mounted,
            source=storage.source,
        )
    return mounted is not None


def _is_stale(storage: StorageSettings, settings: Mapping[str, str], spark: SparkSession | None) -> bool:
    """Return whether what is mounted has another credential; see `apply_credential`."""
    known = {} if spark is None else {key: spark.conf.get(key, None) for key in settings}
    if any(value is not None for value in known.values()):
        return known != settings
    if storage.mount_point in _marks:
        return _marks[storage.mount_point] != _fingerprint(settings)
    try:
        _dbutils.fs.ls(storage.mount_point)
    except Exception:  # noqa: BLE001 (the same settings once more do no harm)
        return True
    _marks[storage.mount_point] = _fingerprint(settings)
    return False


def _fingerprint(settings: Mapping[str, str]) -> bytes:
    """Return what tells settings apart, in this process only, and tells nothing of them."""
    text = "\0".join(part for setting in sorted(settings.items()) for part in setting)
    return blake2b(text.encode(), key=_SALT).digest()


def _open(storage: StorageSettings, settings: Mapping[str, str], spark: SparkSession | None) -> None:
    if not settings:
        return
    if spark is None:
        raise StorageError(
            f"{storage.source} is not mounted, and no session was given that could open it",
            "tl.mount(dbutils, settings.storage, spark)",
            source=storage.source,
        )
    open_store(spark, storage.source, settings)


def resolve(storage: StorageSettings, path: str) -> str:
    """Return the address that Spark reads for `path`.

    Databricks resolves mount points by itself; elsewhere, also with `dbfs:`, and for a source that is not
    mounted, the source is put in the mount point's place. Anything else (a URI, a volume, a local folder)
    stays as it is; but `file:///folder` becomes `file:/folder`, since Delta takes the two for two locations.

    Args:
        storage: The configured storage. Where this process called no `mount`, no other one is looked for.
        path: The path.

    Raises:
        StorageError: The path leads out of where it lies, its scheme is not allowed, or it is below /mnt, or
            begins with `dbfs:` and this is not Databricks, and nothing is mounted there.

    Example:
        >>> tl.resolve(settings.storage, "/mnt/datalake/readings") == f"file:{folder}/readings"
        True
    """
    _require_allowed(path)
    if not is_databricks() and path.startswith(_DBFS):
        path = _without_dbfs(path)
    if path.startswith("file:"):
        return _as_spark_reads(path)
    is_own = not storage.is_mounted or (_dbutils is None and not is_databricks())
    if is_own and _lies_in(path, storage.mount_point):
        return _as_spark_reads(storage.source.rstrip("/")) + path[len(storage.mount_point) :]
    if is_databricks() or not path.startswith("/mnt/"):
        return path
    mounts = {} if _dbutils is None else _mounts()
    for mount_point, source in mounts.items():
        if _lies_in(path, mount_point):
            return _as_spark_reads(source.rstrip("/")) + path[len(mount_point) :]
    raise StorageError(
        f"{path} is below no mount; mounted: {', '.join(sorted(mounts)) or 'nothing'}",
        "mount first (storage.mount), or mend the path",
        path=path,
        mounted=tuple(sorted(mounts)),
    )


def _without_dbfs(path: str) -> str:
    plain = "/" + path.removeprefix(_DBFS).lstrip("/")
    if not plain.startswith("/mnt/"):
        raise StorageError(
            f"{path} is a folder of Databricks, and this is not Databricks",
            "a path below a mount, or file:///<folder>",
            path=path,
            reason="dbfs",
        )
    return plain


def _require_allowed(path: str) -> None:
    text = without_login(path)
    if leads_out(path):
        raise StorageError(
            f"{text} holds `..`, which leads out of its folder",
            "a path without it",
            path=text,
            reason="leads_out",
        )
    forms = [form for form, _ in SOURCES.values()]
    if _URI.match(path) and not path.startswith(_DBFS) and not any(re.match(form, path) for form in forms):
        allowed = ", ".join(written for _, written in SOURCES.values())
        raise StorageError(
            f"{text} has a form that is not allowed",
            f"one of {allowed}, or a path below a mount",
            path=text,
            reason="form",
        )


def _lies_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def require_writable(path: str) -> None:
    """Raise a StorageError for a local folder that can be neither written nor created.

    Args:
        path: As `resolve` returns it: `file:/folder`, or a plain path, which on Databricks is no local one.
    """
    if not path.startswith("file:") and (is_databricks() or not path.startswith("/")):
        return
    folder = Path(path.removeprefix("file:"))
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "cannot be written" if nearest.is_dir() else "is not a folder"
        raise StorageError(
            f"{path} cannot be used: {nearest} {problem}",
            "a storage folder of your own",
            path=path,
            folder=str(nearest),
            reason="not_writable" if nearest.is_dir() else "no_folder",
        )


def _as_spark_reads(source: str) -> str:
    """Hadoop writes local folders `file:/folder`, and takes `%20` for a name with a percent sign."""
    folder = _local(source)
    return source if folder is None else f"file:{folder}"


def _canonical(source: str) -> str:
    """Return one spelling of a source: the workbench keeps a folder's address, with its links followed."""
    folder = _local(source)
    return source.rstrip("/") if folder is None else str(Path(folder).resolve())


def _local(source: str) -> str | None:
    """Return the local folder that a source names; only in an address does `%20` stand for a space."""
    if source.startswith("file:"):
        return "/" + unquote(source.removeprefix("file:")).lstrip("/")
    is_volume = source.startswith("/Volumes/")
    return "/" + source.lstrip("/") if source.startswith("/") and not is_volume else None


def _mounts() -> dict[str, str]:
    return {mount.mountPoint: mount.source for mount in _dbutils.fs.mounts()}
