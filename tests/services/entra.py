"""Microsoft Entra ID, as far as a client with a secret needs it, under its own host name."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs
from uuid import uuid4

from tests.services.azurite import PORT, own_address, require_port
from workbench.host.certificates import Certificate

HOST = "login.microsoftonline.com"
STORAGE = "https://storage.azure.com/"


@dataclass(frozen=True)
class Client:
    """A registered client: whoever knows its secret gets a token for storage."""

    address: str
    tenant_id: str = field(default_factory=lambda: str(uuid4()))
    client_id: str = field(default_factory=lambda: str(uuid4()))
    secret: str = field(default_factory=lambda: uuid4().hex, repr=False)

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        """Return status and body.

        Source: https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow, and its
        earlier form with `resource`, which Hadoop sends.
        """
        wanted = {"grant_type": "client_credentials", "resource": STORAGE, "client_id": self.client_id}
        if path != f"/{self.tenant_id}/oauth2/token" or wanted.items() - form.items():
            return 400, {"error": "unauthorized_client", "error_description": f"AADSTS700016: {form}"}
        if form.get("client_secret") != self.secret:
            return 401, {
                "error": "invalid_client",
                "error_description": "AADSTS7000215: Invalid client secret",
            }
        return 200, {"token_type": "Bearer", "expires_in": "3599", "access_token": self._token()}

    def _token(self) -> str:
        now = int(time.time())
        issuer = f"https://sts.windows.net/{self.tenant_id}/"
        claims = {"aud": STORAGE, "iss": issuer, "iat": now, "nbf": now - 60, "exp": now + 3599}
        parts = [{"alg": "RS256", "typ": "JWT"}, claims, "unsigned"]
        coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        return ".".join(coded)


@contextmanager
def running_entra(certificate: Certificate) -> Iterator[Client]:
    """Answer for one client until the end, over TLS."""
    client = Client(own_address(45))
    require_port(client.address)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            status, response = client.answer(self.path, form)
            answer = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((client.address, PORT), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield client
    server.shutdown()
    server.server_close()
