"""`dbutils.secrets`: values from environment variables, a folder of files, or one file."""

from __future__ import annotations

import builtins
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

import yaml

from topiclake.errors import ConfigError
from workbench.dbutils.help import Documented
from workbench.dbutils.secret_folder import SecretFolder
from workbench.host.redaction import Redactor

PREFIX = "TOPICLAKE_SECRET_"
#: Names a folder such as Kubernetes mounts, in place of `conf/secrets`.
FOLDER_VARIABLE = "TOPICLAKE_SECRETS_FOLDER"


def secrets_of_environment() -> list[str]:
    """Return the values of the environment that are secrets."""
    return [value for name, value in os.environ.items() if name.startswith(PREFIX)]


class SecretScope(NamedTuple):
    """A group of secrets."""

    name: str

    def getName(self) -> str:  # noqa: N802
        """Return the scope's name."""
        return self.name


class SecretMetadata(NamedTuple):
    """A secret without its value."""

    key: str


class Secrets(Documented):
    """Secrets by scope and key; each value handed out is redacted in the notebook's output.

    Args:
        conf: The folder with `secrets.yaml`, `scope: {key: value}`, and `secrets/`, a file
            `<scope>/<key>` for each; neither need exist.
        redactor: Remembers every value.
    """

    def __init__(self, conf: Path, redactor: Redactor) -> None:
        self._file = conf / "secrets.yaml"
        self._folder = SecretFolder(Path(os.environ.get(FOLDER_VARIABLE) or conf / "secrets"))
        self._redactor = redactor

    def get(self, scope: str, key: str) -> str:
        """Return a secret: from the environment, else from the folder, else from the file.

        Raises:
            ConfigError: The secret does not exist, or its file is readable by other users.
        """
        variable = f"{PREFIX}{_upper(scope)}_{_upper(key)}"
        value = os.environ.get(variable)
        if value is None:
            value = self._folder.get(scope, key)
        if value is None:
            value = self._stored().get(scope, {}).get(key)
        if value is None:
            raise ConfigError(
                f"secret '{key}' of scope '{scope}' exists neither as environment variable {variable} "
                f"nor in {self._folder} nor in {self._file}",
                f"export {variable}=<value>",
                scope=scope,
                key=key,
                variable=variable,
                folder=str(self._folder),
                file=str(self._file),
            )
        self._redactor.remember(value)
        return value

    def getBytes(self, scope: str, key: str) -> bytes:  # noqa: N802
        """Return a secret as bytes."""
        return self.get(scope, key).encode()

    def list(self, scope: str) -> list[SecretMetadata]:
        """List a scope's keys; a key that only the environment has is shown in lower case."""
        stored = self._stored()
        prefix = f"{PREFIX}{_upper(scope)}_"
        variables = {name[len(prefix) :] for name in os.environ if name.startswith(prefix)}
        keys = set(stored.get(scope, {})) | self._folder.keys(scope)
        if not keys and not variables:
            raise ConfigError(
                f"secret scope '{scope}' exists neither in the environment ({prefix}<KEY>) "
                f"nor in {self._folder} nor in {self._file}",
                f"export {prefix}<KEY>=<value>",
                scope=scope,
                folder=str(self._folder),
                file=str(self._file),
            )
        keys |= {name.lower() for name in variables - {_upper(key) for key in keys}}
        return [SecretMetadata(key) for key in sorted(keys)]

    def listScopes(self) -> builtins.list[SecretScope]:  # noqa: N802
        """List the scopes; one that only the environment has is named by its first word, in lower case."""
        stored = set(self._stored()) | self._folder.scopes()
        prefixes = tuple(f"{PREFIX}{_upper(scope)}_" for scope in stored)
        unstored = [
            name.removeprefix(PREFIX)
            for name in os.environ
            if name.startswith(PREFIX) and not name.startswith(prefixes)
        ]
        return [SecretScope(name) for name in sorted(stored | {n.split("_")[0].lower() for n in unstored})]

    def _stored(self) -> dict[str, dict[str, str]]:
        if not self._file.exists():
            return {}
        if stat.S_IMODE(self._file.stat().st_mode) & 0o077:
            problem = f"{self._file} can be read by other users"
            raise ConfigError(problem, f"chmod 600 {self._file}", file=str(self._file), reason="readable")
        try:
            scopes = yaml.safe_load(self._file.read_text(encoding="utf-8")) or {}
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            # The parser's message is not used: it quotes the line, which may hold a secret.
            raise ConfigError(
                f"{self._file}{line} is not valid YAML",
                "scope: {key: value}",
                file=str(self._file),
                line=mark.line + 1 if mark else None,
                reason="no_yaml",
            ) from None
        if not isinstance(scopes, dict) or not all(isinstance(keys, dict) for keys in scopes.values()):
            problem = f"{self._file} does not hold scopes with keys"
            raise ConfigError(problem, "scope: {key: value}", file=str(self._file), reason="no_mapping")
        return {str(scope): {str(k): str(v) for k, v in keys.items()} for scope, keys in scopes.items()}


def _upper(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())
