"""Certificates for services of this machine: an authority, and the certificates that it signs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Each start of a kernel imports this module, and few of them make a certificate. So the functions import the
# packages for it.
TRUST_PASSWORD = "changeit"  # noqa: S105 - it protects nothing: the file holds no secret


@dataclass(frozen=True)
class Certificate:
    """PEM files: the authority's certificate, the server's certificate, and the server's key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificate(folder: Path, *hosts: str) -> Certificate:
    """Make an authority and a server certificate for `hosts` (names or addresses).

    The key of the authority is not stored. The certificates do not expire.
    """
    import trustme

    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA(organization_name="Topiclake workbench")
    server = authority.issue_cert(*hosts)
    certificate = Certificate(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    authority.cert_pem.write_to_path(certificate.authority)
    server.cert_chain_pems[0].write_to_path(certificate.certificate)
    certificate.key.touch(mode=0o600)
    server.private_key_pem.write_to_path(certificate.key)
    return certificate


def trust_store(folder: Path, certificate: Certificate) -> Path:
    """Return a PKCS#12 file with which a JVM trusts the authority; its password is Java's own, `changeit`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    file = folder / "trust.p12"
    authority = x509.load_pem_x509_certificate(certificate.authority.read_bytes())
    trusted = pkcs12.PKCS12Certificate(authority, b"workbench")
    encryption = serialization.BestAvailableEncryption(TRUST_PASSWORD.encode())
    file.write_bytes(pkcs12.serialize_java_truststore([trusted], encryption))
    return file
