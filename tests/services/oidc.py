"""An OpenID Connect server with one application: signed tokens by client credentials, and its public keys."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from workbench.host.certificates import Certificate

HOST = "127.0.0.1"
AUDIENCE = "kafka"


@dataclass(frozen=True)
class TokenRequest:
    """A request for a token; `expires_at` is None if it got none."""

    user_agent: str
    form: dict[str, str]
    expires_at: float | None


@dataclass
class OidcServer:
    """The server; a context manager.

    Attributes:
        certificate: The certificate of `localhost`; with it the server speaks TLS.
        lifetime: Seconds for which a token is valid.
        claims: Claims that differ from those of a right token.
        foreign_key: Whether tokens are signed with a key that is not published.
        answer: Status and body in place of a token.
        requests: The requests for tokens.
    """

    certificate: Certificate | None = None
    client_id: str = "orders"
    client_secret: str = field(default_factory=lambda: uuid4().hex, repr=False)
    lifetime: float = 300
    claims: dict[str, Any] = field(default_factory=dict)
    foreign_key: bool = False
    answer: tuple[int, bytes] | None = None
    requests: list[TokenRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key, self._foreign = (rsa.generate_private_key(65537, 2048) for _ in range(2))
        # Keys are read by http: a broker takes the authorities of its JAAS options for a login of its own.
        self._servers = [ThreadingHTTPServer((HOST, 0), _handler(self)) for _ in range(2)]
        tokens, keys = self._servers
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate.certificate, self.certificate.key)
            tokens.socket = context.wrap_socket(
                tokens.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "https" if self.certificate else "http"
        self.url = f"{scheme}://{HOST}:{tokens.server_address[1]}"
        self.jwks_url = f"http://{HOST}:{keys.server_address[1]}/jwks"

    def __enter__(self) -> OidcServer:
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def reset(self) -> None:
        """Return right tokens again, and forget the requests."""
        self.claims, self.lifetime, self.foreign_key, self.answer = {}, 300, False, None
        self.requests.clear()

    def token(self) -> tuple[str, float]:
        """Return a token, and when it ends."""
        now = time.time()
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": self.client_id,
            "iat": int(now),
            "exp": int(now + self.lifetime),
            **self.claims,
        }
        header = {"alg": "RS256", "typ": "JWT", "kid": "1"}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        key = self._foreign if self.foreign_key else self._key
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}", claims["exp"]

    def accepts(self, token: str) -> bool:
        """Return whether a token is signed, meant for the audience, and valid now."""
        signed, _, signature = token.rpartition(".")
        try:
            self._key.public_key().verify(
                _decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
        except InvalidSignature:
            return False
        claims = json.loads(_decoded(signed.partition(".")[2]))
        now = time.time()
        return claims["aud"] == AUDIENCE and claims.get("nbf", 0) <= now < claims["exp"]

    def keys(self) -> dict[str, object]:
        """Return the public key as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        n, e = (
            _encoded(number.to_bytes((number.bit_length() + 7) // 8, "big"))
            for number in (numbers.n, numbers.e)
        )
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "n": n, "e": e}]}

    def respond(self, login: str, user_agent: str, form: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of the answer to a request for a token."""
        if self.answer is not None:
            self.requests.append(TokenRequest(user_agent, form, None))
            return self.answer
        right = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if login != f"Basic {right}" or form.get("grant_type") != "client_credentials":
            self.requests.append(TokenRequest(user_agent, form, None))
            # Some servers repeat what they got.
            body = {"error": "invalid_client", "error_description": f"{login} {form}"}
            return 401, json.dumps(body).encode()
        text, expires_at = self.token()
        self.requests.append(TokenRequest(user_agent, form, expires_at))
        body = {"access_token": text, "token_type": "Bearer", "expires_in": int(expires_at - time.time())}
        return 200, json.dumps(body).encode()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _handler(oidc: OidcServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            login, agent = self.headers.get("Authorization", ""), self.headers.get("User-Agent", "")
            self._send(*oidc.respond(login, agent, form))

        def do_GET(self) -> None:
            self._send(200, json.dumps(oidc.keys()).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing to stderr."""

    return Handler
