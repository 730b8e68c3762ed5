"""The mount table: names under /mnt for folders and containers, kept between runs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from topiclake.errors import StorageError
from workbench.host.files import replace_json
from workbench.host.redaction import REDACTED, Redactor

#: The folder of all mounts, and of nothing else.
MOUNTS = "/mnt"
#: As a configuration's `storage.source`, which Topiclake checks by itself.
_REMOTE = re.compile(r"(?:(?:wasb|abfs)s?://[^@/:]+@[^@/]+|s3a://[^@/:]+)(?:/.*)?", re.DOTALL)
_ALLOWED = (
    "file:///<folder>, wasbs://<container>@<account>.blob.core.windows.net/<folder>, "
    "abfss://<container>@<account>.dfs.core.windows.net/<folder>, s3a://<bucket>/<folder>"
)
#: A secret key may hold slashes.
_LOGIN = re.compile(r"(?<=//)([^/@:]*):([^@]+)(?=@)")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_CREDENTIAL = re.compile(r"(?i)sas|key|secret|password|token|credential")
#: The part of a setting's name without the store: for S3 the word after the bucket, for Azure all before
#: the account.
_BUCKET = re.compile(r"fs\.s3a\.bucket\..*\.")
_ACCOUNT = re.compile(r"\.[^.]+(?:\.z\d+)?\.(?:blob|dfs)\..*")


class MountInfo(NamedTuple):
    """A mount point and its source."""

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
        """The local folder that the mount names, or None for a remote store."""
        return local_folder(self.source)


class MountTable:
    """Mounts in a file that only its owner can read.

    Args:
        file: The table; created with the first mount.
        redactor: Remembers the credentials, also of mounts that earlier runs made.
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
            problem = f"the mount table {self._file} is damaged"
            raise StorageError(
                problem, f"run rm {self._file}, then mount again", file=str(self._file)
            ) from None
        for mount in mounts:
            self._remember(mount)
        return sorted(mounts, key=lambda mount: mount.mount_point)

    def find(self, path: str) -> Mount | None:
        """Return the mount that a path lies in."""
        return next((mount for mount in self.all() if is_within(path, mount.mount_point)), None)

    def add(self, mount: Mount, *, is_update: bool = False) -> None:
        """Add a mount.

        Its store's other mounts get its settings as well, which name the store and not the mount.

        Raises:
            StorageError: The mount point exists and `is_update` is false, or it is inside another one. Or the
                store is mounted with another credential, or the source cannot be used.
        """
        self._remember(mount)
        if login := _LOGIN.search(mount.source):
            self._redactor.remember(login[2])
        _check_mount_point(mount.mount_point)
        _check_source(mount)
        _check_account_key(mount)
        with self._locked():
            others = [entry for entry in self.all() if entry.mount_point != mount.mount_point]
            existing = next((entry for entry in self.all() if entry.mount_point == mount.mount_point), None)
            if existing and not is_update:
                raise StorageError(
                    f"Directory already mounted: {mount.mount_point} (to {shown(existing.source)}; "
                    f"asked for {shown(mount.source)})",
                    f"call dbutils.fs.unmount('{mount.mount_point}') first",
                    mount_point=mount.mount_point,
                    mounted=shown(existing.source),
                    source=shown(mount.source),
                )
            _check_nesting(mount.mount_point, others)
            if existing is None or not _is_of_one_store(existing, mount):
                _check_credential(mount, others)
            _make_folder(mount)
            self._write([*(_with_settings_of(mount, entry) for entry in others), mount])

    def remove(self, mount_point: str) -> None:
        """Remove a mount; the files of its source stay.

        Raises:
            StorageError: Nothing is mounted there.
        """
        with self._locked():
            mounts = self.all()
            remaining = [mount for mount in mounts if mount.mount_point != mount_point]
            if len(remaining) == len(mounts):
                mount_points = ", ".join(mount.mount_point for mount in mounts) or "none"
                raise StorageError(
                    f"Directory not mounted: {mount_point}; mounted are {mount_points}",
                    "correct the mount point",
                    mount_point=mount_point,
                    mounted=tuple(mount.mount_point for mount in mounts),
                )
            self._write(remaining)

    def _remember(self, mount: Mount) -> None:
        for key, value in mount.configs.items():
            if _is_credential(key):
                self._redactor.remember(value)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        # The folder itself is locked: each write replaces the file of the table, and its lock with it.
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self, mounts: list[Mount]) -> None:
        replace_json(self._file, [asdict(mount) for mount in mounts])


def is_within(path: str, mount_point: str) -> bool:
    """Return whether a path is a mount point or lies below it."""
    return f"{path}/".startswith(f"{mount_point}/")


def local_folder(source: str) -> Path | None:
    """Return the folder that a `file:` source or an absolute path names, or None for another source."""
    parts = urlsplit(source)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return Path(source) if source.startswith("/") else None


def shown(source: str) -> str:
    """Return a source without the credential that a URI may hold."""
    return _LOGIN.sub(REDACTED, source)


def has_login(source: str) -> bool:
    """Return whether a source holds a credential, as those that were mounted once may."""
    return _LOGIN.search(source) is not None


def require_inside(path: str) -> None:
    """Raise a StorageError for a path with `..`, written out or as an address may have it (`%2E%2E`)."""
    if ".." in unquote(path).split("/"):
        problem = f"{shown(path)} holds `..`, which leads out of its folder"
        raise StorageError(problem, "use a path without it", path=shown(path), reason="leads_out")


def _is_credential(setting: str) -> bool:
    name = _ACCOUNT.sub("", _BUCKET.sub("", setting))
    # The name of a class that provides a credential is not a credential.
    return not name.endswith(("provider", "provider.type")) and _CREDENTIAL.search(name) is not None


def _is_of_one_store(first: Mount, second: Mount) -> bool:
    return first.folder is None and urlsplit(first.source)[:2] == urlsplit(second.source)[:2]


def _check_credential(mount: Mount, others: list[Mount]) -> None:
    # Settings name the store: those of the last mount would replace those of the first one.
    for other in others:
        if mount.configs and other.configs and _with_settings_of(mount, other) != other:
            raise StorageError(
                f"{mount.mount_point} has another credential than {other.mount_point}, a mount of the same "
                "store, and Hadoop would take one of them for both",
                f"use the same extra_configs, or call dbutils.fs.unmount('{other.mount_point}') first",
                mount_point=mount.mount_point,
                other=other.mount_point,
                reason="credential",
            )


def _with_settings_of(mount: Mount, other: Mount) -> Mount:
    """Return another mount as it is once `mount` has its settings."""
    if not mount.configs or not other.configs:
        return other
    if _is_of_one_store(mount, other):
        return replace(other, configs=mount.configs)
    # For two containers, these are the settings of their account.
    shared = {key: value for key, value in mount.configs.items() if key in other.configs}
    return replace(other, configs={**other.configs, **shared})


def _check_mount_point(mount_point: str) -> None:
    is_path = re.fullmatch(r"(/[^/]+)+", mount_point)
    if not is_path or mount_point == MOUNTS or ".." in unquote(mount_point).split("/"):
        problem = f"'{mount_point}' is not a mount point"
        raise StorageError(
            problem, "use a path such as /mnt/datalake", mount_point=mount_point, reason="form"
        )


def _check_nesting(mount_point: str, others: list[Mount]) -> None:
    for other in others:
        if is_within(mount_point, other.mount_point) or is_within(other.mount_point, mount_point):
            raise StorageError(
                f"{mount_point} and {other.mount_point}, which is mounted, overlap",
                "use a mount point outside of it",
                mount_point=mount_point,
                other=other.mount_point,
                reason="nested",
            )


def _check_source(mount: Mount) -> None:
    source = shown(mount.source)
    if has_login(mount.source):
        raise StorageError(
            f"{source} holds a credential; a source is shown, and so are the settings that name it",
            "use extra_configs, with dbutils.secrets.get",
            source=source,
            reason="login",
        )
    require_inside(mount.source)
    if mount.folder is None and not _REMOTE.fullmatch(mount.source):
        problem = f"{source} cannot be mounted: it is not one of {_ALLOWED}"
        raise StorageError(problem, "use one of these", source=source, reason="form")


def _check_account_key(mount: Mount) -> None:
    for setting, value in mount.configs.items():
        if setting.startswith("fs.azure.account.key.") and not _BASE64.fullmatch(value):
            # Hadoop shows a key that it cannot decode in its error and in Spark's log.
            raise StorageError(
                f"{setting} of {mount.mount_point} is not base64",
                "put the key into a secret as Azure shows it",
                setting=setting,
                mount_point=mount.mount_point,
                reason="account_key_form",
            )


def _make_folder(mount: Mount) -> None:
    if (folder := mount.folder) is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise StorageError(
            f"folder {folder} cannot be mounted at {mount.mount_point}: "
            f"it is not writable ({error.strerror or error})",
            "use another folder, or run chmod u+rwx on it",
            folder=str(folder),
            mount_point=mount.mount_point,
            reason="not_writable",
        ) from error
