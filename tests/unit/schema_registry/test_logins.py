"""Bearer tokens and client certificates at a registry."""

import pickle
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from tests.services.oidc import OidcServer
from tests.support.certificates import client_certificate
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.errors import ConfigError, LoginError, SchemaRegistryError
from topiclake.schema_registry.client import BearerToken
from topiclake.schema_registry.registry import SchemaRegistry
from workbench.host.certificates import make_certificate

HOST = "127.0.0.1"


@pytest.fixture
def oidc():
    with OidcServer() as server:
        yield server


@pytest.fixture
def serve():
    """Start a registry with one subject: `accepts` decides about the header, `tls` is its context."""
    servers = []

    def serve(accepts=lambda _header: True, tls=None):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(dict(self.headers))
                is_welcome = accepts(self.headers.get("Authorization", ""))
                self.send_response(200 if is_welcome else 401)
                self.end_headers()
                self.wfile.write(b'["orders-value"]' if is_welcome else b"{}")

            def log_message(self, *_):
                """Log nothing."""

        server = ThreadingHTTPServer((HOST, 0), Handler)
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        # A client that is refused ends the handshake with an error, which is not printed.
        server.handle_error = lambda *_: None
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"{'https' if tls else 'http'}://{HOST}:{server.server_address[1]}"
        return SimpleNamespace(url=url, asked=asked)

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def registry(url, secrets=None, **given):
    settings = SchemaRegistrySettings.model_validate(
        {"url": url} | given, context={"secrets": lambda _scope, key: (secrets or {})[key]}
    )
    found = SchemaRegistry.from_settings(settings)
    assert not [secret for secret in (secrets or {}).values() if secret in repr(found)]
    return found.patient(0)


def oauth(oidc, **given):
    return {
        "token_url": oidc.token_url,
        "client_id": oidc.client_id,
        "client_secret": "{{secrets/s/secret}}",
    } | given


def test_a_bearer_token_is_sent_and_read_again_after_a_refusal(serve):
    secrets = {"token": "old"}
    server = serve(lambda header: header == "Bearer new")
    found = registry(server.url, secrets, token="{{secrets/s/token}}")
    with pytest.raises(SchemaRegistryError) as raised:
        found.subjects()
    assert raised.value.cause.startswith(
        f"the schema registry at {server.url} refuses the token (HTTP 401); gave up after"
    )
    assert raised.value.fields["status"] == 401
    assert "old" not in str(raised.value)
    secrets["token"] = "new"
    assert found.subjects() == ["orders-value"]


def test_one_token_of_an_oauth_server_is_used_until_it_ends(serve, oidc):
    server = serve(lambda header: oidc.accepts(header.removeprefix("Bearer ")))
    found = registry(server.url, {"secret": oidc.client_secret}, oauth=oauth(oidc, scope="registry"))
    for _ in range(2):
        assert found.subjects() == ["orders-value"]
    (request,) = oidc.requests
    assert request.form["scope"] == "registry"


def test_an_unpickled_registry_has_the_same_login(serve, oidc):
    server = serve(lambda header: oidc.accepts(header.removeprefix("Bearer ")))
    found = registry(server.url, {"secret": oidc.client_secret}, oauth=oauth(oidc))
    assert pickle.loads(pickle.dumps(found)).subjects() == ["orders-value"]


def test_confluent_cloud_gets_its_ids_as_headers(serve, oidc):
    server = serve()
    ids = {"logical_cluster": "lsrc-1", "identity_pool_id": "pool-1"}
    registry(server.url, {"secret": oidc.client_secret}, oauth=oauth(oidc, **ids)).subjects()
    (headers,) = ({name.lower(): value for name, value in asked.items()} for asked in server.asked)
    assert headers["target-sr-cluster"] == "lsrc-1"
    assert headers["confluent-identity-pool-id"] == "pool-1"


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": 1_700_000_000}, "it expired at 2023-11-14T22:13:20Z"),
        ({"nbf": 4_000_000_000}, "it is not valid before 2096-10-02T07:06:40Z"),
        ({"aud": "other"}, "its audience is 'other', and its issuer"),
    ],
)
def test_a_refused_token_is_explained_by_its_claims(serve, oidc, claims, problem):
    oidc.claims = claims
    server = serve(lambda header: oidc.accepts(header.removeprefix("Bearer ")))
    with pytest.raises(SchemaRegistryError) as raised:
        registry(server.url, {"secret": oidc.client_secret}, oauth=oauth(oidc)).subjects()
    assert f"refuses the token (HTTP 401): {problem}" in raised.value.cause
    assert "schema_registry.oauth" in raised.value.remedy


def test_an_oauth_server_that_returns_no_token_is_named(serve, oidc):
    server = serve()
    with pytest.raises(SchemaRegistryError) as raised:
        registry(server.url, {"secret": "wrong-secret"}, oauth=oauth(oidc)).subjects()
    assert f"no token for the schema registry at {server.url}: the OAuth server at" in raised.value.cause
    assert "wrong-secret" not in str(raised.value)
    assert server.asked == []


def test_a_registry_waits_for_an_oauth_server(serve, oidc):
    found = registry(serve().url, {"secret": oidc.client_secret}, oauth=oauth(oidc))
    oidc.answer = (503, b"{}")
    with pytest.raises(SchemaRegistryError):
        found.subjects()
    oidc.answer = None
    assert found.subjects() == ["orders-value"]


def test_a_client_certificate_is_sent(serve, tmp_path):
    server_side = make_certificate(tmp_path / "server", HOST)
    client, stranger = (client_certificate(tmp_path / name) for name in ("client", "stranger"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server_side.certificate, server_side.key)
    tls.load_verify_locations(client.authority)
    tls.verify_mode = ssl.CERT_REQUIRED
    url, ca_file = serve(tls=tls).url, str(server_side.authority)

    def subjects(certificate):
        files = {"file": str(certificate.certificate), "key_file": str(certificate.key)}
        found = registry(url, ca_file=ca_file, client_certificate=files)
        return pickle.loads(pickle.dumps(found)).patient(0).subjects()

    assert subjects(client) == ["orders-value"]
    with pytest.raises(SchemaRegistryError) as raised:
        subjects(stranger)
    assert raised.value.fields["reason"] == "unreachable"
    with pytest.raises(SchemaRegistryError):
        registry(url, ca_file=ca_file).subjects()


def test_a_token_never_goes_through_a_network_in_clear():
    with pytest.raises(ConfigError) as raised:
        registry("http://registry.example", {"token": "t0ken"}, token="{{secrets/s/token}}")
    assert raised.value.fields["reason"] == "in_clear"


def test_spaces_around_a_token_are_removed():
    assert BearerToken("token\n").headers() == {"Authorization": "Bearer token"}


@pytest.mark.parametrize("token", ["", "hunter2\nX: y", "hunter2-ü"])
def test_a_token_that_no_header_can_have_is_refused_and_not_shown(token):
    with pytest.raises(LoginError) as raised:
        BearerToken(token).headers()
    assert raised.value.fields == {"reason": "token"}
    assert "hunter2" not in str(raised.value)
