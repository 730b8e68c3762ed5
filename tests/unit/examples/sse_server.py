"""A server of events as Wikimedia's is, on loopback, which breaks off where it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit


@dataclass
class EventServer:
    """Sends lines of data, with ids as Wikimedia has them, from where the request says.

    Attributes:
        lines: What it sends.
        answers: What the next connections get, in order: a status other than 200, or how many bytes of a
            connection come before it breaks off. Those behind get everything, and stay open until `closed`.
        asked: The headers of each request, and its parameters.
    """

    lines: list[str]
    answers: list[int | float] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream; charset=utf-8"
    url: str = ""

    def stream(self, after: int) -> bytes:
        """Return all of a connection, `:ok` in front of it as Wikimedia does."""
        events = (
            f"event: message\nid: {event_id(number)}\ndata: {self.lines[number]}\n\n"
            for number in range(after + 1, len(self.lines))
        )
        return (":ok\n\n" + "".join(events)).encode()


def event_id(number: int) -> str:
    """Name an event as Wikimedia does: places in its own Kafka."""
    return json.dumps([{"topic": "eqiad.mediawiki.recentchange", "partition": 0, "offset": number}])


@contextmanager
def serving(lines: list[str], **given) -> Iterator[EventServer]:
    """A server while the block runs."""
    event_server = EventServer(lines, **given)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {name: found[0] for name, found in parse_qs(urlsplit(self.path).query).items()}
            event_server.asked.append(dict(self.headers) | query)
            answer = event_server.answers.pop(0) if event_server.answers else None
            if isinstance(answer, int) and answer > 200:
                self.send_response(answer)
                for name, value in event_server.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            last = self.headers.get("Last-Event-ID")
            body = event_server.stream(json.loads(last)[0]["offset"] if last else -1)
            self.send_response(200)
            self.send_header("Content-Type", event_server.content_type)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            cut = body if answer is None else body[: int(answer)]
            for start in range(0, len(cut), 1000):
                piece = cut[start : start + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            # No last chunk: the connection breaks in the middle of the answer.
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    event_server.url = f"http://127.0.0.1:{server.server_port}/v2/stream/recentchange"
    try:
        yield event_server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
