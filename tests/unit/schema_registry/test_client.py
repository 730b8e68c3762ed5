"""How the client reaches a registry: certificates, login, proxies of the environment."""

import base64
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from topiclake.errors import SchemaRegistryError
from topiclake.schema_registry.registry import SchemaRegistry
from workbench.host.certificates import make_certificate

HOST = "127.0.0.1"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in (*PROXIES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def certificate(tmp_path):
    return make_certificate(tmp_path, HOST)


@pytest.fixture
def serve():
    """Start a server that lists one subject, with or without TLS; `asked` are the requests that it gets."""
    servers = []

    def serve(certificate=None):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'["gps-value"]')

            def log_message(self, *_):
                """Log nothing."""

        server = ThreadingHTTPServer((HOST, 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        scheme = "https" if certificate else "http"
        return SimpleNamespace(url=f"{scheme}://{HOST}:{server.server_address[1]}", asked=asked)

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def subjects(url, *arguments, **options):
    return SchemaRegistry(url, *arguments, patience=0, **options).subjects()


def test_the_authority_of_the_settings_is_trusted_and_no_other_one(serve, certificate, tmp_path):
    server = serve(certificate)
    assert subjects(server.url, ca_file=str(certificate.authority)) == ["gps-value"]
    other = make_certificate(tmp_path / "other", HOST)
    for ca_file in (None, str(other.authority)):
        with pytest.raises(SchemaRegistryError, match=r"(?i)certificate.*verif") as caught:
            subjects(server.url, ca_file=ca_file)
        assert caught.value.fields["reason"] == "unreachable"


def test_an_authority_of_the_environment_is_trusted(serve, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    assert subjects(serve(certificate).url) == ["gps-value"]


@pytest.mark.parametrize("login", [("reader", "Sésam:öffne dich"), ("reader", "")])
def test_the_login_is_sent_as_basic_auth(serve, login):
    server = serve()
    subjects(server.url, *login)
    sent = base64.b64encode(":".join(login).encode()).decode()
    assert [authorization for _, authorization in server.asked] == [f"Basic {sent}"]


def test_no_login_is_sent_without_one(serve):
    server = serve()
    subjects(server.url)
    assert [authorization for _, authorization in server.asked] == [None]


def test_a_proxy_of_the_environment_is_asked_but_for_hosts_without_one(serve, monkeypatch):
    proxy, server = serve(), serve()
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    assert subjects("http://registry.example:8081/api") == ["gps-value"]
    ((path, _),) = proxy.asked
    assert path.startswith("http://registry.example:8081/api/subjects")
    monkeypatch.setenv("NO_PROXY", HOST)
    assert subjects(server.url) == ["gps-value"]
    assert len(proxy.asked) == len(server.asked) == 1
