"""Certificates of clients: each form that users have, and what is wrong with one."""

import re
from datetime import datetime, timedelta, timezone

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.support.certificates import client_certificate, keystore, with_password
from topiclake.config.login import CertificateSettings
from topiclake.errors import LoginError
from topiclake.login.certificate import read_certificate, tls_context

PASSWORD = "hunter2"


def read(**given):
    context = {"secrets": lambda _scope, _key: PASSWORD}
    return read_certificate(CertificateSettings.model_validate(given, context=context))


def refused(**given):
    with pytest.raises(LoginError) as raised:
        read(**given)
    assert PASSWORD not in str(raised.value)
    assert raised.value.fields == {"file": str(given["file"]), "reason": "certificate"}
    return raised.value.cause.partition(f"{given['file']} ")[2]


@pytest.fixture
def certificate(tmp_path):
    return client_certificate(tmp_path / "client")


def test_each_form_of_a_certificate_becomes_the_same_text(certificate, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.key.read_bytes() + certificate.certificate.read_bytes())
    secret = "{{secrets/s/password}}"
    forms = [
        read(file=certificate.certificate, key_file=certificate.key),
        read(file=both),
        read(file=certificate.certificate, key_file=with_password(certificate, PASSWORD), password=secret),
        read(file=keystore(certificate, PASSWORD), password=secret),
    ]
    assert len(set(forms)) == 1
    assert forms[0].key.startswith("-----BEGIN PRIVATE KEY-----\n")
    assert forms[0].chain == certificate.certificate.read_text()
    assert load_pem_private_key(forms[0].key.encode(), None)
    assert forms[0].key not in repr(forms[0])


def test_the_certificate_of_the_key_is_the_first(certificate, tmp_path):
    reverse = tmp_path / "reverse.pem"
    own, authority = certificate.certificate.read_text(), certificate.authority.read_text()
    reverse.write_text(authority + own)
    assert read(file=reverse, key_file=certificate.key).chain == own + authority


def test_issuers_follow_in_order_and_other_certificates_are_omitted(tmp_path):
    root = trustme.CA()
    middle = root.create_child_ca()
    issued = middle.issue_cert("client.example")
    issued.private_key_pem.write_to_path(tmp_path / "client.key")
    own, *_ = (pem.bytes() for pem in issued.cert_chain_pems)
    issuers = [middle.cert_pem.bytes(), root.cert_pem.bytes()]
    (tmp_path / "client.pem").write_bytes(b"".join([trustme.CA().cert_pem.bytes(), *reversed(issuers), own]))
    chain = read(file=tmp_path / "client.pem", key_file=tmp_path / "client.key").chain
    assert chain.encode() == b"".join([own, *issuers])


def test_a_certificate_that_cannot_be_used_is_named(certificate, tmp_path):
    secret = "{{secrets/s/password}}"
    other, empty = client_certificate(tmp_path / "other"), tmp_path / "empty.pem"
    empty.write_bytes(b"-----BEGIN CERTIFICATE-----")
    wrong = "cannot be opened with the password, or is damaged"
    assert refused(file=tmp_path / "none.pem").startswith("cannot be read (")
    assert refused(file=certificate.certificate) == "comes without a key"
    assert refused(file=certificate.certificate, key_file=other.key) == "has no certificate of its key"
    assert refused(file=empty, key_file=certificate.key) == wrong
    assert refused(file=certificate.certificate, key_file=with_password(certificate, "x")) == wrong
    assert refused(file=certificate.certificate, key_file=certificate.key, password=secret) == wrong
    assert refused(file=keystore(certificate, "x"), password=secret) == wrong


def test_dates_of_a_certificate_are_checked(tmp_path):
    now = datetime.now(timezone.utc)
    for name, begin, end, problem in (
        ("old", now - timedelta(days=2), now - timedelta(days=1), "expired at"),
        ("new", now + timedelta(days=1), now + timedelta(days=2), "is not valid before"),
    ):
        made = client_certificate(tmp_path / name, not_before=begin, not_after=end)
        cause = refused(file=made.certificate, key_file=made.key)
        assert re.fullmatch(rf"{problem} \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ", cause)


def test_a_context_of_tls_leaves_no_file(certificate, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()
    found = read(file=certificate.certificate, key_file=certificate.key)
    tls_context(str(certificate.authority), found)
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_authorities_of_the_environment_are_read_once_until_it_changes(certificate, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    context = tls_context(None, None)
    assert tls_context(None, None) is context
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    other = tls_context(None, None)
    assert other is not context
    assert len(other.get_ca_certs()) == 1
    # A certificate of a client belongs to one login.
    assert tls_context(str(certificate.authority), None) is not tls_context(str(certificate.authority), None)
