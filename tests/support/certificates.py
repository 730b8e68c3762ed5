"""Certificates of clients in the forms in which users have them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from workbench.host.certificates import Certificate


def client_certificate(
    folder: Path, not_before: datetime | None = None, not_after: datetime | None = None
) -> Certificate:
    """Make an authority and the certificate of a client; the key has the form of OpenSSL, not PKCS#8."""
    folder.mkdir(parents=True)
    authority = trustme.CA(organization_name="clients")
    issued = authority.issue_cert("client.example", not_before=not_before, not_after=not_after)
    made = Certificate(folder / "authority.pem", folder / "client.pem", folder / "client.key")
    authority.cert_pem.write_to_path(made.authority)
    made.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(made.key)
    return made


def with_password(certificate: Certificate, password: str) -> Path:
    """Write the key with a password."""
    file = certificate.key.with_name("encrypted.key")
    encryption = serialization.BestAvailableEncryption(password.encode())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    file.write_bytes(_key(certificate).private_bytes(*form))
    return file


def keystore(certificate: Certificate, password: str) -> Path:
    """Write a PKCS#12 keystore."""
    file = certificate.key.with_name("client.p12")
    own = x509.load_pem_x509_certificate(certificate.certificate.read_bytes())
    encryption = serialization.BestAvailableEncryption(password.encode())
    file.write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", _key(certificate), own, None, encryption)
    )
    return file


def server_keystore(certificate: Certificate) -> Path:
    """Write key and certificate of a server into a PEM file, as Kafka reads them: PKCS#8 only."""
    file = certificate.key.with_name("keystore.pem")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(_key(certificate).private_bytes(*form) + certificate.certificate.read_bytes())
    return file


def _key(certificate: Certificate) -> pkcs12.PKCS12PrivateKeyTypes:
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    assert isinstance(key, pkcs12.PKCS12PrivateKeyTypes)
    return key
