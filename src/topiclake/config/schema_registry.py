"""The connection to the schema registry: the configuration's section `schema_registry`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from topiclake.config.secret import SecretReference, Section


class SchemaRegistrySettings(Section):
    """The connection to the schema registry, and how long to wait for it."""

    #: The address of the REST API, with its path and without a login.
    url: Annotated[str, Field(pattern=r"^https?://")]
    #: The login of basic auth. Set it when the registry asks for one.
    username: SecretReference | None = None
    #: The password of that login.
    password: SecretReference | None = None
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate.
    ca_file: Path | None = None
    #: How long a micro-batch waits for a registry that does not answer, before the query fails. Raise it to
    #: survive longer outages; lower it when a scheduler restarts the job anyway.
    retry_seconds: Annotated[float, Field(ge=0)] = 300
    #: How long a micro-batch asks again for an id that the registry does not know, before its records go to
    #: quarantine. Raise it when a follower of the registry lags for longer.
    new_id_seconds: Annotated[float, Field(ge=0)] = 10
