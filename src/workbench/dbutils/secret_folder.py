"""Secrets as files, `<scope>/<key>`, such as Kubernetes mounts."""

from __future__ import annotations

import stat
from pathlib import Path

from topiclake.errors import ConfigError


class SecretFolder:
    """A folder with a folder for each scope and a file for each key; it need not exist.

    Args:
        folder: The folder. Names that begin with a dot are no secrets: Kubernetes keeps its versions there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def scopes(self) -> set[str]:
        """Return the names of the scopes."""
        return {path.name for path in _entries(self._folder) if path.is_dir()}

    def keys(self, scope: str) -> set[str]:
        """Return the names of a scope's keys."""
        return (
            {path.name for path in _entries(self._folder / scope) if path.is_file()}
            if _plain(scope)
            else set()
        )

    def get(self, scope: str, key: str) -> str | None:
        """Return a file's text without the newline at its end, or None when there is no such file.

        Raises:
            ConfigError: Others can read the file, or it is not text.
        """
        file = self._folder / scope / key
        if not (_plain(scope) and _plain(key) and file.is_file()):
            return None
        # The group may read it: files that Kubernetes mounts with an fsGroup are always readable by it.
        if stat.S_IMODE(file.stat().st_mode) & stat.S_IRWXO:
            raise ConfigError(
                f"{file} can be read by other users",
                f"run chmod o= {file}, or set defaultMode: 0440",
                file=str(file),
                reason="readable",
            )
        try:
            return file.read_bytes().decode("utf-8").removesuffix("\n")
        except OSError as error:
            problem = f"{file} cannot be read ({error.strerror})"
            raise ConfigError(problem, f"ls -lL {file}", file=str(file), reason="unreadable") from None
        except UnicodeDecodeError:
            raise ConfigError(
                f"{file} is not UTF-8 text", "store the secret in base64", file=str(file), reason="no_text"
            ) from None


def _entries(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def _plain(name: str) -> bool:
    return "/" not in name and not name.startswith(".")
