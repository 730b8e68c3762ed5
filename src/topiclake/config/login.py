"""Logins that the broker and the schema registry both accept: parts of their sections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from topiclake.config.secret import SecretReference, Section
from topiclake.config.source import Text

#: An id of Confluent Cloud. librdkafka separates extensions by commas.
_ConfluentId = Annotated[str, Field(pattern=r"^[\w-]+$")]


class OAuthClientSettings(Section):
    """An application with client credentials at an OAuth server, such as Entra ID, Keycloak or Okta."""

    #: The token endpoint of the server. Only a server of this machine may have http.
    token_url: Annotated[str, Field(pattern=r"^(https://|http://(localhost|127\.0\.0\.1)[:/])[^@]*$")]
    #: The application's id.
    client_id: Text
    #: Its secret.
    client_secret: SecretReference
    #: The scopes to ask for, with spaces between them. Set it when the server wants it, as Entra ID does.
    scope: Text | None = None
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate of
    #: the OAuth server.
    ca_file: Path | None = None
    #: Confluent Cloud: the id of the cluster (`lkc-…`) or of the registry (`lsrc-…`).
    logical_cluster: _ConfluentId | None = None
    #: Confluent Cloud: the id of the identity pool (`pool-…`).
    identity_pool_id: _ConfluentId | None = None


def _check_keystore(file: Path) -> Path:
    if file.suffix.lower() in (".jks", ".keystore"):
        raise ValueError(
            "must be PEM or PKCS#12: keytool -importkeystore -srckeystore <file> -destkeystore client.p12 "
            "-deststoretype PKCS12 converts a JKS keystore"
        )
    return file


class CertificateSettings(Section):
    """The certificate by which a server knows this client."""

    #: A PEM file with the certificate and its chain, or a PKCS#12 keystore (`.p12`, `.pfx`).
    file: Annotated[Path, AfterValidator(_check_keystore)]
    #: A PEM file with the private key. Set it when `file` does not contain the key.
    key_file: Path | None = None
    #: The password of the keystore or of the key. Set it when they have one.
    password: SecretReference | None = None
