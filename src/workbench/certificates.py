"""Certificates for services of this machine: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

TRUST_PASSWORD = "changeit"  # noqa: S105 - it protects nothing: the file holds no secret


@dataclass(frozen=True)
class Certificate:
    """PEM files: the authority's certificate, the server's certificate, and the server's key (PKCS#8)."""

    authority: Path
    certificate: Path
    key: Path


def make_certificate(folder: Path, *hosts: str, days: int = 1) -> Certificate:
    """Make an authority and a server certificate for `hosts` (names or addresses), valid for some days."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Topiclake workbench")])
    authority = (
        _builder(authority_name, authority_name, authority_key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]), authority_name, server_key, days
        )
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificate(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return made


def trust_store(folder: Path, certificate: Certificate) -> Path:
    """Return a PKCS#12 file by which a JVM trusts the authority; its password is Java's own, `changeit`."""
    file = folder / "trust.p12"
    authority = x509.load_pem_x509_certificate(certificate.authority.read_bytes())
    trusted = pkcs12.PKCS12Certificate(authority, b"workbench")
    encryption = serialization.BestAvailableEncryption(TRUST_PASSWORD.encode())
    file.write_bytes(pkcs12.serialize_java_truststore([trusted], encryption))
    return file


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
