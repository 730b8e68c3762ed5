"""`dbutils.fs`: files in local folders and in mounted local folders, and the mounts themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from topiclake.config.storage import hadoop_address
from topiclake.errors import StorageError
from topiclake.storage.access import open_store
from workbench.dbutils import dbfs
from workbench.dbutils.help import Documented
from workbench.dbutils.mounts import (
    MOUNTS,
    Mount,
    MountInfo,
    MountTable,
    has_login,
    is_within,
    local_folder,
    require_inside,
    shown,
)


class FileInfo(NamedTuple):
    """One entry of a folder; a folder's name and path end in "/" and its size is 0."""

    path: str
    name: str
    size: int
    modificationTime: int  # noqa: N815

    def isDir(self) -> bool:  # noqa: N802
        """Return whether it is a folder."""
        return self.name.endswith("/")

    def isFile(self) -> bool:  # noqa: N802
        """Return whether it is a file."""
        return not self.isDir()


class FileSystem(Documented):
    """Files in mounted folders, below the workbench's home, and with `file:` anywhere.

    Paths are `/mnt/<mount>/...` (also with `dbfs:`), `dbfs:/...` or `file:/...`. Spark reads the same files
    by `dbfs:` and `file:`. A path without either, below no mount, is an error: Databricks' Spark reads it
    below `dbfs:/`, and Spark here in the machine's root.

    Args:
        mounts: The mount table.
        root: The folder that `dbfs:/` names.
        spark: Returns the live Spark session, or None if no session is live.
    """

    def __init__(self, mounts: MountTable, root: Path, spark: Callable[[], SparkSession | None]) -> None:
        self._mounts = mounts
        self._root = root
        self._spark = spark

    def mount(
        self,
        source: str,
        mount_point: str,
        encryption_type: str = "",
        owner: str | None = None,
        extra_configs: Mapping[str, str] | None = None,
    ) -> bool:
        """Mount a folder or a container; its settings go to Spark, now or when Spark starts.

        Args:
            source: `file:///<folder>` or an absolute path (created if missing), or a remote URI.
            mount_point: A path such as `/mnt/datalake`.
            encryption_type: Kept and shown, not used.
            owner: Ignored: the workbench has one user.
            extra_configs: Hadoop settings of the storage, such as a SAS token; never shown.

        Raises:
            StorageError: The mount point is taken, or the source cannot be used.
        """
        return self._mount(source, mount_point, encryption_type, extra_configs, replace=False)

    def updateMount(  # noqa: N802
        self,
        source: str,
        mount_point: str,
        encryption_type: str = "",
        owner: str | None = None,
        extra_configs: Mapping[str, str] | None = None,
    ) -> bool:
        """Mount as `mount` does, in place of what is mounted there."""
        return self._mount(source, mount_point, encryption_type, extra_configs, replace=True)

    def mounts(self) -> list[MountInfo]:
        """List the mounts."""
        return [
            MountInfo(mount.mount_point, shown(mount.source), mount.encryption_type)
            for mount in self._mounts.all()
        ]

    def refreshMounts(self) -> bool:  # noqa: N802
        """Read the mount table again and give its settings to Spark."""
        self._configure()
        return True

    def unmount(self, mount_point: str) -> bool:
        """Remove a mount; the files stay."""
        self._mounts.remove(_plain(mount_point))
        spark = self._spark()
        if spark is not None:
            spark.conf.unset(dbfs.link(_plain(mount_point)))
        return True

    def ls(self, path: str) -> list[FileInfo]:
        """List a folder by name, or the file itself; `/mnt` lists what is mounted."""
        if _plain(path) == MOUNTS:
            names = {
                mount.mountPoint.split("/")[2]
                for mount in self.mounts()
                if is_within(mount.mountPoint, MOUNTS)
            }
            return [FileInfo(f"dbfs:{MOUNTS}/{name}/", f"{name}/", 0, 0) for name in sorted(names)]
        target = self._existing(path)
        prefix = path.rstrip("/") if path.startswith("file:") else f"dbfs:{_plain(path).rstrip('/')}"
        if target.is_file():
            return [_entry(target, prefix.rpartition("/")[0])]
        return [_entry(entry, prefix) for entry in sorted(target.iterdir())]

    def mkdirs(self, dir: str) -> bool:
        """Make a folder and those above it."""
        self._resolve(dir).mkdir(parents=True, exist_ok=True)
        return True

    def head(self, file: str, max_bytes: int = 65536) -> str:
        """Return the beginning of a text file."""
        with open(self._existing(file), "rb") as opened:
            return opened.read(max_bytes).decode("utf-8", errors="replace")

    def put(self, file: str, contents: str, overwrite: bool = False) -> bool:
        """Write a text file.

        Raises:
            StorageError: It exists and `overwrite` is false.
        """
        target = self._resolve(file)
        if target.exists() and not overwrite:
            raise StorageError(f"{file} exists already", "pass overwrite=True", path=file, reason="exists")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(contents, encoding="utf-8")
        return True

    def rm(self, dir: str, recurse: bool = False) -> bool:
        """Remove a file or folder; return False if it does not exist.

        Raises:
            StorageError: A folder is not empty and `recurse` is false, or it is a mount point or the root.
        """
        target = self._resolve(dir)
        if target in (Path(target.anchor), self._root) or _plain(dir) in (
            mount.mountPoint for mount in self.mounts()
        ):
            raise StorageError(
                f"{dir} is the root of a file system and stays",
                "use a path inside it",
                path=dir,
                reason="root",
            )
        if not target.exists() and not target.is_symlink():
            return False
        # A link itself is removed, never its target.
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif recurse:
            shutil.rmtree(target)
        elif any(target.iterdir()):
            raise StorageError(
                f"{dir} is a folder that is not empty", "recurse=True", path=dir, reason="not_empty"
            )
        else:
            target.rmdir()
        return True

    def cp(self, source: str, dest: str, recurse: bool = False) -> bool:
        """Copy a file, or a folder with `recurse`; into `dest` when that is a folder."""
        origin, target = self._both(source, dest, recurse)
        if origin.is_dir():
            shutil.copytree(origin, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(origin, target)
        return True

    def mv(self, source: str, dest: str, recurse: bool = False) -> bool:
        """Move a file, or a folder with `recurse`; into `dest` when that is a folder."""
        origin, target = self._both(source, dest, recurse)
        shutil.move(origin, target)
        return True

    def _mount(
        self, source: str, mount_point: str, kind: str, configs: Mapping[str, str] | None, *, replace: bool
    ) -> bool:
        # An address may hold parts such as `..`, which a resolved folder does not show.
        require_inside(source)
        folder = local_folder(source)
        uri = folder.resolve().as_uri() if folder else hadoop_address(source)
        values = {str(key): str(value) for key, value in (configs or {}).items()}
        self._mounts.add(Mount(_plain(mount_point), uri, kind, values), is_update=replace)
        self._configure()
        return True

    def _configure(self) -> None:
        """Give the live Spark session, if there is one, the settings of all mounts."""
        spark = self._spark()
        if spark is not None:
            for mount in self._mounts.all():
                # The setting's name would show the credential. Hadoop does not open such an address anyway.
                if has_login(mount.source):
                    continue
                spark.conf.set(dbfs.link(mount.mount_point), mount.source)
                open_store(spark, mount.source, mount.configs)

    def _both(self, source: str, dest: str, recurse: bool) -> tuple[Path, Path]:
        origin, target = self._existing(source), self._resolve(dest)
        if origin.is_dir() and not recurse:
            raise StorageError(f"{source} is a folder", "pass recurse=True", path=source, reason="folder")
        if target.is_dir() and origin.is_file():
            target = target / origin.name
        target.parent.mkdir(parents=True, exist_ok=True)
        return origin, target

    def _existing(self, path: str) -> Path:
        target = self._resolve(path)
        if not target.exists():
            raise StorageError(f"{path} does not exist", "correct the path", path=path, reason="missing")
        return target

    def _resolve(self, path: str) -> Path:
        require_inside(path)
        if path.startswith("file:"):
            folder = local_folder(path) or _refuse(path, "it names another machine")
            return Path(os.path.normpath(folder))
        plain = _plain(path)
        if scheme := urlsplit(plain).scheme:
            return _refuse(path, f"dbutils.fs of the workbench reads local folders, not {scheme}: paths")
        if not plain.startswith("/"):
            return _refuse(path, "it is not an absolute path")
        if plain == MOUNTS:
            return _refuse(path, "only mounts lie there")
        mount = self._mounts.find(plain)
        if mount is None:
            if plain.startswith("/mnt/"):
                mount_points = ", ".join(entry.mountPoint for entry in self.mounts()) or "none"
                return _refuse(path, f"nothing is mounted there; mounted are {mount_points}")
            return self._below_root(path, plain)
        if mount.folder is None:
            return _refuse(path, f"it is mounted from {shown(mount.source)}, which only Spark reads here")
        return mount.folder / plain[len(mount.mount_point) :].strip("/")

    def _below_root(self, path: str, plain: str) -> Path:
        if not path.startswith("dbfs:"):
            raise StorageError(
                f"{path} is two places: on Databricks dbfs:{plain}, which is {self._root}{plain} here, and "
                f"file:{plain} for Spark here",
                f"use dbfs:{plain} or file:{plain}",
                path=path,
                reason="two_places",
            )
        self._root.mkdir(parents=True, exist_ok=True)
        return self._root / plain.strip("/")


def _refuse(path: str, problem: str) -> NoReturn:
    cause = f"{shown(path)} cannot be used: {problem}"
    raise StorageError(cause, "use spark.read, or a mounted local folder", path=shown(path), reason=problem)


def _plain(path: str) -> str:
    """Return a path without `dbfs:`, and without slashes and dots that mean nothing."""
    bare = path.removeprefix("dbfs:")
    if not bare.startswith("/"):
        return bare
    return "/" + "/".join(part for part in bare.split("/") if part not in ("", "."))


def _entry(path: Path, folder: str) -> FileInfo:
    # A link that leads nowhere is an entry, too.
    status = path.stat() if path.exists() else path.lstat()
    name = f"{path.name}/" if path.is_dir() else path.name
    size = status.st_size if path.is_file() else 0
    return FileInfo(f"{folder}/{name}", name, size, int(status.st_mtime * 1000))
