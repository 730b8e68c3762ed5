"""The mount table: names under /mnt for folders and containers, kept between runs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from topiclake.errors import StorageError
from workbench.files import replace_json
from workbench.redaction import REDACTED, Redactor

REMOTE_SCHEMES = ("wasb", "wasbs", "abfs", "abfss", "s3", "s3a", "gs", "adl")
CREDENTIAL_KEY = re.compile(r"(?i)sas|key|secret|password|token|credential")


class MountInfo(NamedTuple):
    """A mount point and what it stands for."""

    mountPoint: str  # noqa: N815
    source: str
    encryptionType: str  # noqa: N815


@dataclass(frozen=True)
class Mount:
    """A mount with the settings it needs; these may hold credentials and are never shown."""

    mount_point: str
    source: str
    encryption_type: str = ""
    configs: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path | None:
        """The local folder behind the mount, or None for a remote one."""
        return local_folder(self.source)


class MountTable:
    """Mounts in a file that only its owner can read.

    Args:
        file: The table; created with the first mount.
        redactor: Is told the credentials, also of mounts that earlier runs made.
    """

    def __init__(self, file: Path, redactor: Redactor) -> None:
        self._file = file
        self._redactor = redactor

    def all(self) -> list[Mount]:
        """Return the mounts, by mount point."""
        if not self._file.exists():
            return []
        try:
            mounts = [Mount(**entry) for entry in json.loads(self._file.read_text(encoding="utf-8"))]
        except (ValueError, TypeError):
            raise StorageError(
                f"the mount table {self._file} is damaged", f"rm {self._file}, then mount again"
            ) from None
        for mount in mounts:
            self._remember(mount)
        return sorted(mounts, key=lambda mount: mount.mount_point)

    def find(self, path: str) -> Mount | None:
        """Return the mount that a path lies in."""
        return next((mount for mount in self.all() if lies_in(path, mount.mount_point)), None)

    def add(self, mount: Mount, *, replace: bool = False) -> None:
        """Add a mount.

        Raises:
            StorageError: The mount point is taken and `replace` is false, it lies in another one, or
                the source cannot be used.
        """
        self._remember(mount)
        _check_mount_point(mount.mount_point)
        with self._locked():
            others = [known for known in self.all() if known.mount_point != mount.mount_point]
            taken = next((known for known in self.all() if known.mount_point == mount.mount_point), None)
            if taken and not replace:
                raise StorageError(
                    f"Directory already mounted: {mount.mount_point} (to {shown(taken.source)}; "
                    f"asked for {shown(mount.source)})",
                    f"dbutils.fs.unmount('{mount.mount_point}') first",
                )
            _check_nesting(mount.mount_point, others)
            _check_source(mount)
            self._write([*others, mount])

    def remove(self, mount_point: str) -> None:
        """Remove a mount; what it stands for stays as it is.

        Raises:
            StorageError: Nothing is mounted there.
        """
        with self._locked():
            mounts = self.all()
            left = [mount for mount in mounts if mount.mount_point != mount_point]
            if len(left) == len(mounts):
                known = ", ".join(mount.mount_point for mount in mounts) or "none"
                raise StorageError(f"Directory not mounted: {mount_point}; mounted are {known}")
            self._write(left)

    def _remember(self, mount: Mount) -> None:
        for key, value in mount.configs.items():
            if CREDENTIAL_KEY.search(key):
                self._redactor.remember(value)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        # The folder itself is locked: the table is replaced by each write, and its lock would be with it.
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self, mounts: list[Mount]) -> None:
        replace_json(self._file, [asdict(mount) for mount in mounts])


def lies_in(path: str, mount_point: str) -> bool:
    """Tell whether a path is a mount point or lies below it."""
    return f"{path}/".startswith(f"{mount_point}/")


def local_folder(source: str) -> Path | None:
    """Return the folder that a `file:` source or an absolute path names, or None for another source."""
    parts = urlsplit(source)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return Path(source) if source.startswith("/") else None


def shown(source: str) -> str:
    """Return a source without the password that a URI may hold."""
    return re.sub(r"//[^/@:]+:[^/@]+@", f"//{REDACTED}@", source)


def _check_mount_point(mount_point: str) -> None:
    if not re.fullmatch(r"(/[^/]+)+", mount_point) or ".." in mount_point.split("/"):
        raise StorageError(f"'{mount_point}' is not a mount point", "a path such as /mnt/datalake")


def _check_nesting(mount_point: str, others: list[Mount]) -> None:
    for other in others:
        if lies_in(mount_point, other.mount_point) or lies_in(other.mount_point, mount_point):
            raise StorageError(f"{mount_point} and {other.mount_point}, which is mounted, lie in each other")


def _check_source(mount: Mount) -> None:
    folder = mount.folder
    if folder is None:
        scheme = urlsplit(mount.source).scheme
        if scheme not in REMOTE_SCHEMES:
            allowed = ", ".join(("file", *REMOTE_SCHEMES))
            raise StorageError(
                f"{shown(mount.source)} cannot be mounted: its scheme is not one of {allowed}",
                "a URI such as wasbs://<container>@<account>.blob.core.windows.net/<folder>",
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise StorageError(
            f"folder {folder} cannot be mounted at {mount.mount_point}: "
            f"it is not writable ({error.strerror or error})",
            "another folder, or chmod u+rwx on it",
        ) from error
