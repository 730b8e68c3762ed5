"""The dashboard's pages, for callers that have its token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler, StaticFileHandler

from topiclake.errors import TopiclakeError
from topiclake.monitoring.store import Store
from workbench.dashboard.drilldown import page, small_tables
from workbench.dashboard.jobs_tab import JOBS, jobs_page, read_notebook
from workbench.dashboard.metrics import exposition
from workbench.dashboard.page_access import PageAccess
from workbench.dashboard.readings import Readings
from workbench.dashboard.snapshot import details, overview
from workbench.host.home import Home

ASSETS = Path(__file__).parent / "assets"
REFRESH_SECONDS = 0.5
PING_SECONDS = 10.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def application(store: Store, access: PageAccess, home: Home) -> Application:
    """Return the page as an application of Tornado.

    Args:
        store: The reports of the queries.
        access: The page's token, and the hosts and the port that requests may name.
        home: The home whose jobs are shown.
    """
    arguments: dict[str, Any] = {"store": store, "access": access, "home": home, "readings": Readings()}
    return Application(
        [
            (r"/", _Page, arguments),
            (r"/events", _Events, arguments),
            (r"/metrics", _Metrics, arguments),
            (r"/jobs/(\d{1,18})/([\w-]+)/(\d{1,18})", _Notebook, arguments),
            (r"/assets/(.*)", _Asset, {"path": str(ASSETS), **arguments}),
        ],
        log_function=lambda _: None,  # addresses carry the token
    )


class _Guarded(RequestHandler):
    """Answers requests that have the token, and whose `Host` header names this host."""

    def initialize(self, store: Store, access: PageAccess, home: Home, readings: Readings) -> None:
        self._store, self._access, self._home, self._readings = store, access, home, readings

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")

    def prepare(self) -> None:
        # Browsers give a cookie to every port of a host.
        cookie = f"workbench_dashboard_{self._access.port}"
        if not self._access.is_own(self.request.host):
            self._refuse(403, "Host header not allowed")
        elif self._access.is_token(self.get_query_argument("token", "")):
            self.set_cookie(cookie, self._access.token, httponly=True, samesite="Strict")
            self.redirect(self.request.path)
        elif not self._access.is_token(self.get_cookie(cookie) or self._bearer()):
            self._refuse(401, "the token is missing: open the address that `workbench dashboard` prints")

    def _refuse(self, status: int, problem: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(problem)

    def _bearer(self) -> str:
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else ""


class _Page(_Guarded):
    def get(self) -> None:
        self.write((ASSETS / "index.html").read_bytes())


class _Metrics(_Guarded):
    """For Prometheus, which brings the token as `Authorization: Bearer …`."""

    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.write(exposition(self._store))


class _Asset(_Guarded, StaticFileHandler):
    def initialize(self, path: str, **arguments: Any) -> None:  # type: ignore[override]  # noqa: ANN401
        _Guarded.initialize(self, **arguments)
        StaticFileHandler.initialize(self, path)


class _Notebook(_Guarded):
    """The saved notebook of one attempt at a task."""

    def get(self, run: str, task: str, attempt: str) -> None:
        try:
            notebook = read_notebook(self._home, int(run), task, int(attempt))
        except TopiclakeError as error:
            self._refuse(404, error.cause)
            return
        # A notebook may hold any script: it must not reach the dashboard.
        self.set_header("Content-Security-Policy", "sandbox allow-scripts; frame-ancestors 'none'")
        self.write(notebook)


class _Events(_Guarded):
    """Server-sent events: everything that is shown, whenever some of it has changed."""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        address, before, silent = self.get_query_argument("page", ""), "", 0.0
        try:
            while True:
                text = json.dumps(self._content(address))
                if text != before:
                    self.write(f"retry: 1000\ndata: {text}\n\n")
                    before, silent = text, 0.0
                elif silent >= PING_SECONDS:
                    self.write(": still here\n\n")
                    silent = 0.0
                await self.flush()
                await asyncio.sleep(REFRESH_SECONDS)
                silent += REFRESH_SECONDS
        except (StreamClosedError, asyncio.CancelledError):
            return  # the browser or the server has ended

    def _content(self, address: str) -> dict[str, Any]:
        queries = overview(self._store)
        content: dict[str, Any] = {"queries": queries, "details": None, "small": {}, "page": None}
        # `<query id>`, or `<query id>/<search>`.
        query_id, *search = map(unquote, address.split("/"))
        if any(query["id"] == query_id for query in queries):
            small = small_tables(self._store, self._readings, query_id)
            return content | {"details": details(self._store, query_id, *search[:1]), "small": small}
        if address == JOBS:
            return content | {"page": jobs_page(self._home, self._readings)}
        return content | {"page": page(self._store, self._readings, address)}
