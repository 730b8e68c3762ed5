"""The page's server, on loopback unless told otherwise, for whoever has its token."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import sqlite3
import threading
import webbrowser
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import click
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler, StaticFileHandler

from topiclake.errors import ConfigError, StorageError
from topiclake.monitoring.store import Store
from workbench.dashboard.drilldown import page, small_tables
from workbench.dashboard.metrics import exposition
from workbench.dashboard.readings import Readings
from workbench.dashboard.snapshot import details, overview
from workbench.host.files import replace_json, replace_private
from workbench.host.home import Home
from workbench.host.page_access import PageAccess
from workbench.host.ports import HOST, ask
from workbench.services.query_watch import reports_file

ASSETS = Path(__file__).parent / "assets"
REFRESH_SECONDS = 0.5
PING_SECONDS = 10.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def serve(home: Home, *, port: int, listen: IPv4Address, browser: bool) -> None:
    """Show the page until Ctrl-C or SIGTERM.

    Args:
        home: Whose queries are shown.
        port: Where to listen; 0 for that of the last time, or a free one.
        listen: The address for it.
        browser: Whether the page is opened.

    Raises:
        ConfigError: The port is taken, or the address is not this machine's.
    """
    home.prepare()
    before = _kept_access(home)
    if not port and _is_served(before):
        click.echo(f"dashboard  {before.url}\nit runs already")
        if browser:
            webbrowser.open(_doorway(home, before))
        return
    asyncio.run(_serve(home, before, port, listen, browser=browser))


def _is_served(access: PageAccess) -> bool:
    """Whether a server of this home answers."""
    if not access.port:
        return False
    asked = {"Authorization": f"Bearer {access.token}"}
    answer = ask(access.port, "GET", f"http://{HOST}:{access.port}/", 2, headers=asked)
    return not isinstance(answer, str) and answer.ok


async def _serve(home: Home, before: PageAccess, port: int, listen: IPv4Address, *, browser: bool) -> None:
    sockets = _listen(listen, port, before.port)
    # All addresses of a machine have none that it is asked for by.
    address = HOST if listen.is_unspecified else str(listen)
    access = PageAccess(sockets[0].getsockname()[1], before.token, address)
    _keep_access(home, access)
    store = _open(home)
    server = HTTPServer(application(store, access))
    server.add_sockets(sockets)
    click.echo(f"dashboard  {access.url}\nend it with Ctrl-C")
    if not listen.is_loopback:
        click.echo(f"it listens on {listen}, not only for this machine, and nothing is encrypted")
    if browser:
        # Some browsers return when they are closed.
        threading.Thread(target=webbrowser.open, args=(_doorway(home, access),), daemon=True).start()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    server.stop()
    store.close()


def _open(home: Home) -> Store:
    file = reports_file(home.folder)
    try:
        return Store(file)
    except sqlite3.Error as error:
        raise StorageError(f"{file} cannot be read: {error}", f"move it away: rm {file}*") from None


def _doorway(home: Home, access: PageAccess) -> str:
    """Return the address of a file that leads to the page: all users can see a browser's arguments."""
    file = home.data / "dashboard.html"
    replace_private(file, f'<meta http-equiv="refresh" content="0; url={access.url}">'.encode())
    return file.as_uri()


def _listen(address: IPv4Address, port: int, before: int) -> list[socket.socket]:
    for wanted in [port] if port else [before, 0]:
        try:
            return bind_sockets(wanted, str(address))
        except OSError as error:
            problem = error.strerror
    raise ConfigError(f"port {port} cannot be used on {address}: {problem}", "another --port or --listen")


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
        except StreamClosedError:
            return

    def _shown(self, address: str) -> dict[str, Any]:
        queries = overview(self._store)
        is_query = any(query["id"] == address for query in queries)
        return {
            "queries": queries,
            "details": details(self._store, address) if is_query else None,
            "small": small_tables(self._store, self._readings, address) if is_query else {},
            "page": None if is_query else page(self._store, self._readings, address),
        }


def _kept_access(home: Home) -> PageAccess:
    """Return what the last server used, so that an open page survives a restart; else port 0, a new token."""
    try:
        access = json.loads(_access_file(home).read_text("utf-8"))
        return PageAccess(int(access["port"]), str(access["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return PageAccess(0, secrets.token_urlsafe(32))


def _keep_access(home: Home, access: PageAccess) -> None:
    _access_file(home).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_json(_access_file(home), {"port": access.port, "token": access.token})
    # Prometheus reads a token from a file that holds nothing else.
    replace_private(home.data / "dashboard.token", access.token.encode())


def _access_file(home: Home) -> Path:
    return home.data / "dashboard.json"
