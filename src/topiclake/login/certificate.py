"""The certificate of a client: from PEM files or a PKCS#12 keystore to what TLS libraries accept."""

from __future__ import annotations

import os
import re
import secrets
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx

from topiclake.config.login import CertificateSettings
from topiclake.errors import LoginError, require_extra

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.+?-----END \1-----", re.DOTALL)
_CHECK = "check file, key_file and password of client_certificate"


@dataclass(frozen=True)
class ClientCertificate:
    """A certificate and its key.

    Attributes:
        chain: PEM of the certificate and of the authorities that the file contains, the client's first.
        key: PEM of the key, as PKCS#8 without a password; never shown.
    """

    chain: str
    key: str = field(repr=False)


def read_certificate(settings: CertificateSettings) -> ClientCertificate:
    """Return the certificate of the configuration. Kafka on the JVM wants the key as PKCS#8.

    Raises:
        LoginError: A file is missing, the password is wrong, no certificate belongs to the key, or today is
            not within its dates.
        PlatformError: The extra `certificates` is missing.
    """
    require_extra("certificates", "cryptography")
    from cryptography.hazmat.primitives import serialization

    key, certificates = _read(settings)
    own = next(
        (certificate for certificate in certificates if certificate.public_key() == key.public_key()), None
    )
    if own is None:
        raise _unusable(settings, "has no certificate of its key")
    _check_dates(settings, own)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return ClientCertificate(
        "".join(certificate.public_bytes(pem).decode() for certificate in _chain(own, certificates)),
        key.private_bytes(pem, form, serialization.NoEncryption()).decode(),
    )


def _chain(own: Certificate, certificates: list[Certificate]) -> list[Certificate]:
    """Return a certificate and its issuers in order; Java refuses any other certificate and order."""
    chain, others = [own], [certificate for certificate in certificates if certificate != own]
    while issuer := next(
        (certificate for certificate in others if certificate.subject == chain[-1].issuer), None
    ):
        chain.append(issuer)
        others.remove(issuer)
    return chain


def tls_context(ca_file: str | None, certificate: ClientCertificate | None) -> ssl.SSLContext:
    """Return TLS with these authorities, else those of the environment, and with the client's certificate."""
    if ca_file is None and certificate is None:
        return _context_of_environment(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    context = ssl.create_default_context(cafile=ca_file) if ca_file else httpx.create_ssl_context()
    if certificate is None:
        return context
    from cryptography.hazmat.primitives import serialization

    password = secrets.token_hex()
    encrypted = serialization.load_pem_private_key(certificate.key.encode(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    # Python's TLS reads a certificate from a file only.
    with TemporaryDirectory(prefix="topiclake-") as folder:
        file = Path(folder, "client.pem")
        file.write_bytes(certificate.chain.encode() + encrypted)
        context.load_cert_chain(file, password=password)
    return context


@lru_cache(maxsize=1)
def _context_of_environment(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Return TLS with the authorities of the environment, which each start would read again (25 ms)."""
    return httpx.create_ssl_context()


def _read(settings: CertificateSettings) -> tuple[Any, list[Certificate]]:
    """Return the key and all certificates."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12

    password = settings.password.reveal().encode() if settings.password else None
    try:
        content = settings.file.read_bytes()
        if b"-----BEGIN " not in content:
            store = pkcs12.load_pkcs12(content, password)
            if store.key is None:
                raise _unusable(settings, "comes without a key")
            stored = [store.cert, *store.additional_certs]
            return store.key, [found.certificate for found in stored if found is not None]
        with_key = settings.key_file.read_bytes() if settings.key_file else content
        pem = _PRIVATE_KEY.search(with_key)
        if pem is None:
            raise _unusable(settings, "comes without a key")
        return load_pem_private_key(pem[0], password), x509.load_pem_x509_certificates(content)
    except OSError as error:
        raise _unusable(settings, f"cannot be read ({error})") from None
    except (TypeError, ValueError):
        # TypeError: a password is missing, or the key has none. The texts may quote the content.
        raise _unusable(settings, "cannot be opened with the password, or is damaged") from None


def _check_dates(settings: CertificateSettings, own: Certificate) -> None:
    now = datetime.now(timezone.utc)
    if own.not_valid_after_utc < now:
        raise _unusable(settings, f"expired at {own.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}")
    if own.not_valid_before_utc > now:
        raise _unusable(settings, f"is not valid before {own.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}")


def _unusable(settings: CertificateSettings, problem: str) -> LoginError:
    file = str(settings.file)
    return LoginError(f"the client certificate {file} {problem}", _CHECK, file=file, reason="certificate")
