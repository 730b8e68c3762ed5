"""Where OpenLineage events go: the configuration's section `lineage`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from topiclake.config.secret import SecretReference, Section

Text = Annotated[str, Field(min_length=1)]


class LineageSettings(Section):
    """A file, or a server that accepts OpenLineage's events, such as Marquez."""

    #: On a local disk: an event is a line of JSON; several pipelines may share it. Use it without a server.
    file: Path | None = None
    #: The address of a server; it or `file` is set.
    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    #: The path of the server's API. Set it for a server other than Marquez, such as DataHub.
    endpoint: Text = "api/v1/lineage"
    #: Sent as a bearer token. Set it when the server asks for one.
    api_key: SecretReference | None = None
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate.
    ca_file: Path | None = None
    #: OpenLineage's namespace of the jobs. Set one for each environment that shares a server.
    namespace: Text = "topiclake"

    @model_validator(mode="after")
    def _check_together(self) -> LineageSettings:
        if (self.file is None) == (self.url is None):
            raise ValueError("needs file or url, and not both")
        if self.url is None and (self.api_key or self.ca_file):
            raise ValueError("api_key and ca_file belong to url")
        if self.url is not None and ("@" in self.url or "?" in self.url):
            raise ValueError(
                "url must hold no login and no query, which logs would show: api_key is for that"
            )
        return self
