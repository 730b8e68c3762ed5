"""Tokens of an OAuth server, and why there is none."""

import time

import pytest

from tests.services.oidc import OidcServer
from topiclake.errors import LoginError
from topiclake.login import oauth
from topiclake.login.oauth import OAuthClient, RenewedToken
from workbench.host.certificates import make_certificate


@pytest.fixture
def oidc():
    with OidcServer() as server:
        yield server


def client(oidc, **given):
    return OAuthClient(
        **{"token_url": oidc.token_url, "client_id": oidc.client_id, "client_secret": oidc.client_secret}
        | given
    )


def refused(application):
    with pytest.raises(LoginError) as raised:
        application.request_token()
    assert application.client_secret not in f"{raised.value} {raised.value.fields}"
    return raised.value


def test_a_token_comes_with_its_end(oidc):
    token = client(oidc, scope="a b").request_token()
    assert oidc.accepts(token.text)
    (request,) = oidc.requests
    assert request.form == {"grant_type": "client_credentials", "scope": "a b"}
    assert token.expires_at == request.expires_at


def test_the_authority_of_the_settings_is_trusted(tmp_path):
    certificate = make_certificate(tmp_path, "127.0.0.1")
    with OidcServer(certificate) as oidc:
        assert client(oidc, ca_file=str(certificate.authority)).request_token().text
        error = refused(client(oidc))
        assert error.fields["reason"] == "unreachable"
        assert "certificate" in error.cause


def test_a_wrong_secret_is_named_and_not_shown(oidc):
    error = refused(client(oidc, client_secret="hunter2"))
    assert error.cause == (
        f"the OAuth server at {oidc.token_url} refuses the client orders (HTTP 401: invalid_client)"
    )
    assert error.fields == {"url": oidc.token_url, "client_id": "orders", "status": 401, "reason": "client"}


@pytest.mark.parametrize(
    "answer", [(500, b"{}"), (200, b"<html>"), (200, b"[]"), (200, b'{"access_token": 1}')]
)
def test_an_answer_without_a_token_is_named(oidc, answer):
    oidc.answer = answer
    error = refused(client(oidc))
    assert (error.fields["reason"], error.fields["status"]) == ("no_token", answer[0])


def test_text_of_the_server_is_not_shown(oidc):
    oidc.answer = (400, b'{"error": "secret-1", "error_description": "secret-2"}')
    assert "secret-" not in str(refused(client(oidc)))


def test_a_server_that_does_not_answer_is_named(oidc):
    error = refused(client(oidc, token_url="http://127.0.0.1:1/token"))
    assert error.fields == {"url": "http://127.0.0.1:1/token", "reason": "unreachable"}


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": 1_700_000_000}, "it expired at 2023-11-14T22:13:20Z"),
        ({"nbf": 4_000_000_000}, "it is not valid before 2096-10-02T07:06:40Z"),
        (
            {"aud": "other", "iss": "https://issuer"},
            "its audience is 'other', and its issuer 'https://issuer'",
        ),
    ],
)
def test_a_token_shows_why_it_may_be_refused(oidc, claims, problem):
    oidc.claims = claims
    assert client(oidc).request_token().problem() == problem


def test_a_token_that_is_no_jwt_has_the_lifetime_of_the_answer(oidc):
    oidc.answer = (200, b'{"access_token": "opaque", "expires_in": 60}')
    token = client(oidc).request_token()
    assert token.text == "opaque"
    assert 50 < token.expires_at - time.time() <= 60
    assert token.problem() == "its audience is None, and its issuer None"


@pytest.mark.parametrize("answer", [b'{"access_token": "t"}', b'{"access_token": "t", "expires_in": "300"}'])
def test_a_token_of_unknown_lifetime_is_used_for_minutes(oidc, answer):
    oidc.answer = (200, answer)
    renewed = RenewedToken(client(oidc))
    assert renewed.current() is renewed.current()
    assert 250 < renewed.current().expires_at - time.time() <= 300


def test_a_time_in_milliseconds_is_shown(oidc):
    oidc.claims = {"nbf": 4_000_000_000_000}
    assert client(oidc).request_token().problem() == "it is not valid before 4e+12 seconds after 1970"


def test_a_token_is_renewed_before_it_ends(oidc, monkeypatch):
    renewed = RenewedToken(client(oidc))
    assert renewed.problem() == ""
    first = renewed.current()
    assert renewed.current() is first
    now = time.time()
    monkeypatch.setattr(oauth, "time", lambda: now + 0.81 * oidc.lifetime)
    assert renewed.current() is not first
    assert len(oidc.requests) == 2


def test_no_repr_shows_a_secret(oidc):
    application = client(oidc)
    token = application.request_token()
    assert oidc.client_secret not in repr(application)
    assert token.text not in repr(token)
