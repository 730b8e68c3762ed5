"""An HTTP proxy in front of the real schema registry, whose answers can be spoilt while it runs.

    with FaultProxy(addresses.schema_registry_url) as proxy:
        registry = SchemaRegistry(proxy.url)
        proxy.fault("503", times=3)  # the next three requests; without times: until heal()
        proxy.fault("hang", path="/schemas/ids/")  # only requests whose path holds that
        proxy.heal()
        proxy.requests  # what was asked, when, and which fault it met

It speaks HTTP/1.0, a connection for each request, so that "down" refuses the very next one.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from workbench.host.certificates import Certificate

HOST = "127.0.0.1"
JSON = "application/vnd.schemaregistry.v1+json"
UPSTREAM_SECONDS = 30

#: Faults that need more than another answer.
DOWN, HANG, SLOW, TRICKLE, TRUNCATED, CUT = "down", "hang", "slow", "trickle", "truncated", "cut"


@dataclass(frozen=True)
class Answer:
    """What goes back to the client."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": JSON})


def refusal(status: int, code: int, message: str) -> Answer:
    """An error in the registry's own form."""
    return Answer(status, json.dumps({"error_code": code, "message": message}).encode())


def page(status: int) -> Answer:
    """What something in front of the registry answers in its place."""
    body = f"<html><body><h1>{status}</h1></body></html>".encode()
    return Answer(status, body, {"Content-Type": "text/html"})


ANSWERS = {
    **{str(status): page(status) for status in (302, 400, 401, 403, 404, 408, 429, 500, 502, 503, 504)},
    "html": page(200),
    "empty": Answer(200, b""),
    "no content": Answer(204, b""),
    "null": Answer(200, b"null"),
    "other json": Answer(200, b'{"status": "ok"}'),
    "own 401": refusal(401, 40101, "Unauthorized"),
    "own 404": refusal(404, 404, "HTTP 404 Not Found"),
    "own 404 without schema": refusal(404, 40403, "Schema not found"),
    "own 404 without subject": refusal(404, 40401, "Subject not found"),
    "own 429": refusal(429, 42901, "Too many requests"),
    "own 500": refusal(500, 50001, "Error in the backend data store"),
}


@dataclass(frozen=True)
class Request:
    """One request that reached the proxy; `fault` is what it met."""

    at: float
    method: str
    path: str
    fault: str | None


@dataclass
class _Fault:
    kind: str
    path: str
    times: int | None
    seconds: float
    headers: Mapping[str, str]


class FaultProxy:
    """The proxy; a context manager.

    Args:
        upstream: Address of the registry's REST API, with its path.
        clock: Gives the times of `requests`.
        certificate: The certificate of `localhost`; with it the proxy speaks TLS.
        clients: PEM file with the authority that has to sign the certificates of clients.
    """

    def __init__(
        self,
        upstream: str,
        clock: Callable[[], float] = time.monotonic,
        certificate: Certificate | None = None,
        clients: Path | None = None,
    ) -> None:
        self._upstream, self._clock, self._certificate = urlsplit(upstream), clock, certificate
        self._clients = clients
        self._faults: list[_Fault] = []
        self._healed = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.requests: list[Request] = []
        #: GUID → schema id; makes the proxy answer /schemas/guids/…, which Apicurio does not have.
        self.guids: dict[str, int] | None = None
        #: User name and password that requests must bring, as basic auth.
        self.login: tuple[str, str] | None = None
        #: A token that requests must bring instead, or what says whether a token is accepted.
        self.bearer: str | Callable[[str], bool] | None = None

    def __enter__(self) -> FaultProxy:
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._healed.set()
        self._close()

    @property
    def url(self) -> str:
        """The address to give to the client; it stays the same when the proxy is down for a while."""
        origin = f"https://localhost:{self._port}" if self._certificate else f"http://{HOST}:{self._port}"
        return origin + self._upstream.path

    def fault(
        self,
        kind: str,
        *,
        times: int | None = None,
        path: str = "",
        seconds: float = 0.2,
        retry_after: str | None = None,
    ) -> None:
        """Spoil what comes: the next `times` requests to `path`, or all of them until `heal`.

        Args:
            kind: `down`, `hang`, `slow`, `trickle`, `truncated`, `cut` or a name in `ANSWERS`.
            times: How many requests; not for `down`, which nothing reaches.
            path: A part of the path (with query) that a request must hold.
            seconds: How late `slow` is, and the pause between two bytes of `trickle`.
            retry_after: The header `Retry-After`.
        """
        assert kind in (HANG, SLOW, TRICKLE, TRUNCATED, CUT) or kind == DOWN or kind in ANSWERS, kind
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        if kind == DOWN:
            self._close()
        else:
            self._healed.clear()
            self._faults.append(_Fault(kind, path, times, seconds, headers))

    def heal(self) -> None:
        """End all faults; requests that hang are cut."""
        self._faults.clear()
        self._healed.set()
        if self._server is None:
            self._listen()

    def times(self, path: str) -> list[float]:
        """When the requests whose path ends in `path` came; for those to ids and listings."""
        return [request.at for request in self.requests if request.path.endswith(path)]

    def _listen(self) -> None:
        self._server = ThreadingHTTPServer((HOST, self._port), _handler(self))
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        if self._certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate.certificate, self._certificate.key)
            if self._clients:
                context.load_verify_locations(self._clients)
                context.verify_mode = ssl.CERT_REQUIRED
            # The handshake is left to the thread of the connection: a client that refuses it stops no other.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.socket.close()
            self._server = None

    def _take(self, method: str, path: str) -> _Fault | None:
        """Note a request and return the fault that it meets."""
        found = next((fault for fault in self._faults if fault.path in path), None)
        if found and found.times is not None:
            found.times -= 1
            if found.times == 0:
                self._faults.remove(found)
        self.requests.append(Request(self._clock(), method, path, found and found.kind))
        return found

    def is_welcome(self, authorization: str | None) -> bool:
        """Tell whether a request brings the login that is asked for."""
        if callable(self.bearer):
            return self.bearer((authorization or "").removeprefix("Bearer "))
        if self.bearer is not None:
            return authorization == f"Bearer {self.bearer}"
        if self.login is None:
            return True
        return authorization == "Basic " + base64.b64encode(":".join(self.login).encode()).decode()

    def _right(self, method: str, path: str, body: bytes | None) -> Answer:
        """Return the answer without a fault."""
        local = path.removeprefix(self._upstream.path)
        if self.guids is None or not local.startswith("/schemas/guids/"):
            return self._forward(method, path, body)
        guid = local.rsplit("/", 1)[-1]
        if guid not in self.guids:
            return ANSWERS["own 404 without schema"]
        answer = self._forward("GET", f"{self._upstream.path}/schemas/ids/{self.guids[guid]}", None)
        return Answer(answer.status, json.dumps(json.loads(answer.body) | {"guid": guid}).encode())

    def _forward(self, method: str, path: str, body: bytes | None) -> Answer:
        connection = http.client.HTTPConnection(
            self._upstream.hostname or HOST, self._upstream.port, timeout=UPSTREAM_SECONDS
        )
        try:
            connection.request(method, path, body, {"Content-Type": JSON})
            response = connection.getresponse()
            kind = response.headers.get("Content-Type", JSON)
            return Answer(response.status, response.read(), {"Content-Type": kind})
        finally:
            connection.close()


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Write nothing to stderr."""

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length) if length else None
            fault = proxy._take(self.command, self.path)
            kind = fault.kind if fault else None
            if kind == HANG:
                proxy._healed.wait()
                return
            if kind == CUT:
                return
            if fault and kind == SLOW:
                proxy._healed.wait(fault.seconds)
            if not proxy.is_welcome(self.headers.get("Authorization")):
                self._write(ANSWERS["own 401"])
                return
            if fault and fault.kind in ANSWERS:
                found = ANSWERS[fault.kind]
                self._write(Answer(found.status, found.body, {**found.headers, **fault.headers}))
                return
            self._write(proxy._right(self.command, self.path, body), kind, fault.seconds if fault else 0.0)

        def _write(self, answer: Answer, kind: str | None = None, pause: float = 0.0) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if kind == TRICKLE:
                for byte in answer.body:
                    self.wfile.write(bytes([byte]))
                    if proxy._healed.wait(pause):
                        return
            else:
                self.wfile.write(answer.body[: len(answer.body) // 2] if kind == TRUNCATED else answer.body)

        def handle(self) -> None:
            """A client that gave up is no error here."""
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                self.close_connection = True

    return Handler
