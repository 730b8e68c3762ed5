"""The dashboard's pages, for callers that have its token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler, StaticFileHandler

from topiclake.monitoring.store import Store
from workbench.dashboard.drilldown import page, small_tables
from workbench.dashboard.metrics import exposition
from workbench.dashboard.readings import Readings
from workbench.dashboard.snapshot import details, overview
from workbench.host.page_access import PageAccess

ASSETS = Path(__file__).parent / "assets"
REFRESH_SECONDS = 0.5
PING_SECONDS = 10.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def application(store: Store, access: PageAccess) -> Application:
    """Return the page as an application of Tornado.

    Args:
        store: What is shown.
        access: Who may see it, and under which port it is asked for.
    """
    given: dict[str, Any] = {"store": store, "access": access}
    return Application(
        [
            (r"/", _Page, given),
            (r"/events", _Events, {"readings": Readings(), **given}),
            (r"/metrics", _Metrics, given),
            (r"/assets/(.*)", _Asset, {"path": str(ASSETS), **given}),
        ],
        log_function=lambda _: None,  # addresses carry the token
    )


class _Guarded(RequestHandler):
    """Answers those who bring the token, and who asked for this host."""

    def initialize(self, store: Store, access: PageAccess) -> None:
        self._store, self._access = store, access

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
            self._refuse(403, "this name is not mine")
        elif self._access.fits(self.get_query_argument("token", "")):
            self.set_cookie(cookie, self._access.token, httponly=True, samesite="Strict")
            self.redirect(self.request.path)
        elif not self._access.fits(self.get_cookie(cookie) or self._bearer()):
            self._refuse(401, "the address with its token is what `workbench dashboard` has printed")

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
    def initialize(self, path: str, store: Store, access: PageAccess) -> None:  # type: ignore[override]
        _Guarded.initialize(self, store, access)
        StaticFileHandler.initialize(self, path)


class _Events(_Guarded):
    """Server-sent events: everything that is shown, whenever some of it has changed."""

    def initialize(self, store: Store, access: PageAccess, readings: Readings) -> None:  # type: ignore[override]
        super().initialize(store, access)
        self._readings = readings

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        address, before, silent = self.get_query_argument("page", ""), "", 0.0
        try:
            while True:
                text = json.dumps(self._shown(address))
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

    def _shown(self, address: str) -> dict[str, Any]:
        queries = overview(self._store)
        is_query = any(query["id"] == address for query in queries)
        return {
            "queries": queries,
            "details": details(self._store, address) if is_query else None,
            "small": small_tables(self._store, self._readings, address) if is_query else {},
            "page": None if is_query else page(self._store, self._readings, address),
        }
