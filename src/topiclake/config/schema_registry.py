"""The connection to the schema registry: the configuration's section `schema_registry`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from topiclake.config.login import CertificateSettings, OAuthClientSettings
from topiclake.config.secret import SecretReference, Section

#: Hosts of registries with another REST API than Confluent's.
_OTHER_REGISTRIES = {
    r"glue\..+\.amazonaws\.com(\.cn)?": "AWS Glue Schema Registry",
    r".+\.servicebus\.(windows\.net|chinacloudapi\.cn)": "the schema registry of Azure Event Hubs",
}


def _refuse_others(url: str) -> str:
    host = urlsplit(url).hostname or ""
    for hosts, name in _OTHER_REGISTRIES.items():
        if re.fullmatch(hosts, host):
            raise ValueError(f"{name} is not supported: a registry needs Confluent's REST API")
    return url


class SchemaRegistrySettings(Section):
    """The connection to the schema registry, and how long to wait for it."""

    #: The address of the REST API, with its path and without a login.
    url: Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_refuse_others)]
    #: The login of basic auth. Set it when the registry asks for one.
    username: SecretReference | None = None
    #: The password of that login.
    password: SecretReference | None = None
    #: A bearer token that somebody else renews, in place of a login.
    token: SecretReference | None = None
    #: The application that asks an OAuth server for tokens, in place of a login.
    oauth: OAuthClientSettings | None = None
    #: The certificate of this client. Set it when the registry asks for one.
    client_certificate: CertificateSettings | None = None
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate.
    ca_file: Path | None = None
    #: How long a micro-batch waits for a registry that does not answer, before the query fails. Raise it to
    #: survive longer outages; lower it when a scheduler restarts the job anyway.
    retry_seconds: Annotated[float, Field(ge=0)] = 300
    #: How long a micro-batch asks again for an id that the registry does not know, before its records go to
    #: quarantine. Raise it when a follower of the registry lags for longer.
    new_id_seconds: Annotated[float, Field(ge=0)] = 3

    @model_validator(mode="after")
    def _check_login(self) -> SchemaRegistrySettings:
        given = [name for name in ("username", "token", "oauth") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a registry has one login: remove all but one of {', '.join(given)}")
        if self.client_certificate is not None and not self.url.startswith("https:"):
            raise ValueError("client_certificate needs an url with https")
        return self
