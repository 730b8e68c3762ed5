"""How to reach the schema registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from topiclake.config.secret import SecretReference, Section


class SchemaRegistrySettings(Section):
    """How to reach the schema registry."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    username: SecretReference | None = None
    password: SecretReference | None = None
    ca_file: Path | None = None
    #: How long a micro-batch waits for a registry that gives no answer, before the query fails.
    retry_seconds: Annotated[float, Field(ge=0)] = 300
    #: How long a micro-batch asks again for an id that the registry does not know, before its records go to
    #: quarantine: a follower of the registry may lag.
    new_id_seconds: Annotated[float, Field(ge=0)] = 10
