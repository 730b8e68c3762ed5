"""Blob storage behind a mount point, the same on Databricks and elsewhere."""

from __future__ import annotations

import re
from typing import Any

from topiclake.config import StorageSettings
from topiclake.errors import StorageError

_WASBS = re.compile(
    r"^wasbs?://(?P<container>[^@/]+)@(?P<account>[^/.]+)(?P<suffix>\.[^/]+)?(?P<folder>/.*)?$"
)


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
    that is no path below a mount point (a URI, a volume, a local folder) stays as it is.

    Raises:
        StorageError: The path is below /mnt, and nothing is mounted there.
    """
    if databricks or not path.startswith("/mnt/"):
        return path
    mounts = _mounts(dbutils)
    for mount_point, source in mounts.items():
        if path == mount_point or path.startswith(f"{mount_point}/"):
            return source.rstrip("/") + path[len(mount_point) :]
    raise StorageError(
        f"{path} is below no mount; mounted: {', '.join(sorted(mounts)) or 'nothing'}",
        "mount first (storage.mount), or mend the path",
    )


def _mounts(dbutils: Any) -> dict[str, str]:  # noqa: ANN401
    return {mount.mountPoint: mount.source for mount in dbutils.fs.mounts()}
