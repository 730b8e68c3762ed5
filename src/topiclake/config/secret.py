"""References to secrets, which configuration holds in the secrets' place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationInfo

from topiclake.errors import ConfigError

#: A secret is a reference to a scope and a key, as in Databricks' own job files.
SECRET_REFERENCE = re.compile(r"^\{\{secrets/([\w.@-]+)/([\w.@-]+)\}\}$")

SecretReader = Callable[[str, str], str]


class Secret:
    """A reference `{{secrets/scope/key}}`, resolved when it is used and never printed."""

    def __init__(self, scope: str, key: str, read: SecretReader | None) -> None:
        self._scope, self._key, self._read = scope, key, read

    @property
    def name(self) -> str:
        """Scope and key."""
        return f"{self._scope}/{self._key}"

    def reveal(self) -> str:
        """Return the secret's value.

        Raises:
            ConfigError: Nothing was given that can read secrets, or it does not know this one.
        """
        if self._read is None:
            raise ConfigError(
                f"the secret {self._scope}/{self._key} is asked for, but nothing here can read secrets",
                "pass secrets=dbutils.secrets.get to load_settings",
                secret=self.name,
            )
        return self._read(self._scope, self._key)

    def __repr__(self) -> str:
        return f"Secret({self._scope}/{self._key}, [REDACTED])"


def _parse_secret(value: object, info: ValidationInfo) -> Secret:
    if isinstance(value, Secret):
        return value
    match = SECRET_REFERENCE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a reference {{secrets/<scope>/<key>}}, never the secret itself")
    return Secret(match[1], match[2], (info.context or {}).get("secrets"))


SecretReference = Annotated[Secret, BeforeValidator(_parse_secret), PlainSerializer(repr)]


class Section(BaseModel):
    """A part of the configuration: its keys are all known, and it never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
