"""The dashboard's server while a command runs: one for each home, on loopback unless asked otherwise."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import sqlite3
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path

import click
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from topiclake.errors import ConfigError, StorageError, TopiclakeError
from topiclake.monitoring.store import Store
from workbench.dashboard.jobs_tab import JOBS
from workbench.dashboard.page_access import PageAccess
from workbench.dashboard.server import application
from workbench.host.files import replace_json, replace_private
from workbench.host.home import Home
from workbench.host.ports import HOST, send_request
from workbench.services.query_watch import reports_file

LOOPBACK = IPv4Address(HOST)


def serve(home: Home, *, port: int, listen: IPv4Address, browser: bool) -> None:
    """Show the page until Ctrl-C or SIGTERM.

    Args:
        home: Whose queries are shown.
        port: Where to listen; 0 for that of the last time, or a free one.
        listen: The address for it.
        browser: Whether the page is opened in a browser.

    Raises:
        ConfigError: The port is taken, or the address is not this machine's.
        StorageError: The file of the queries' reports cannot be read.
    """
    with suppress(KeyboardInterrupt), _serving(home, port, listen) as (access, runs_already):
        click.echo(f"dashboard  {access.url}\n{'it runs already' if runs_already else 'end it with Ctrl-C'}")
        if not (runs_already or listen.is_loopback):
            click.echo(f"it listens on {listen}, not only for this machine, and nothing is encrypted")
        if browser:
            opening = _open_page(home, access)
        if not runs_already:
            signal.pause()
        elif browser:
            opening.join()


@contextmanager
def dashboard_during(
    home: Home, report: Callable[[str], None], announcement: str, *, browser: bool = False
) -> Iterator[None]:
    """Serve the dashboard while a block runs; if it does not start, the block runs without it.

    Args:
        home: Whose queries are shown.
        report: Is called with the announcement, or with the reason why the dashboard does not start.
        announcement: A text with `{}` for the page's address.
        browser: Whether the page is opened.
    """
    with ExitStack() as stack:
        try:
            access, _ = stack.enter_context(_serving(home))
        except TopiclakeError as error:
            report(f"✗ the dashboard does not start: {error}")
        else:
            report(announcement.format(access.url))
            if browser:
                _open_page(home, access)
        yield


@contextmanager
def _serving(home: Home, port: int = 0, listen: IPv4Address = LOOPBACK) -> Iterator[tuple[PageAccess, bool]]:
    """Serve the page on a thread while a block runs; give its address, and whether a server ran already."""
    home.prepare()
    before = _saved_access(home)
    if not port and _is_served(before):
        yield before, True
        return
    with closing(_open_store(home)) as store:
        sockets = _bind(listen, port, before.port)
        # All addresses of a machine have none that it is asked for by.
        address = HOST if listen.is_unspecified else str(listen)
        access = PageAccess(sockets[0].getsockname()[1], before.token, address)
        _save_access(home, access)
        ended = threading.Event()
        answering = _answer(application(store, access, home), sockets, ended)
        thread = threading.Thread(target=asyncio.run, args=(answering,), daemon=True)
        thread.start()
        try:
            yield access, False
        finally:
            ended.set()
            thread.join()


async def _answer(pages: Application, sockets: list[socket.socket], ended: threading.Event) -> None:
    server = HTTPServer(pages)
    server.add_sockets(sockets)
    await asyncio.to_thread(ended.wait)
    server.stop()


def jobs_address(home: Home) -> str:
    """Return the address of the tab of jobs; the command that serves it if no server answers."""
    access = _saved_access(home)
    return f"{access.url}#{JOBS}" if _is_served(access) else "python -m workbench dashboard"


def _is_served(access: PageAccess) -> bool:
    """Return whether a server of this home answers."""
    if not access.port:
        return False
    headers = {"Authorization": f"Bearer {access.token}"}
    answer = send_request(access.port, "GET", f"http://{HOST}:{access.port}/", 2, headers=headers)
    return not isinstance(answer, str) and answer.ok


def _open_store(home: Home) -> Store:
    file = reports_file(home.folder)
    try:
        return Store(file)
    except sqlite3.Error as error:
        raise StorageError(f"{file} cannot be read: {error}", f"run rm {file}*", file=str(file)) from None


def _bind(address: IPv4Address, port: int, before: int) -> list[socket.socket]:
    for candidate in [port] if port else [before, 0]:
        try:
            return bind_sockets(candidate, str(address))
        except OSError as error:
            problem = error.strerror
    raise ConfigError(
        f"port {port} cannot be used on {address}: {problem}", "pass another --port or --listen", port=port
    )


def _open_page(home: Home, access: PageAccess) -> threading.Thread:
    """Open the page on a thread, and return it: some browsers return when they are closed.

    All users can see a browser's arguments. So the browser opens a file that leads to the page.
    """
    file = home.data / "dashboard.html"
    replace_private(file, f'<meta http-equiv="refresh" content="0; url={access.url}">'.encode())
    thread = threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True)
    thread.start()
    return thread


def _saved_access(home: Home) -> PageAccess:
    """Return what the last server used, so that an open page survives a restart; else port 0, a new token."""
    try:
        access = json.loads(_access_file(home).read_text("utf-8"))
        return PageAccess(int(access["port"]), str(access["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return PageAccess(0, secrets.token_urlsafe(32))


def _save_access(home: Home, access: PageAccess) -> None:
    replace_json(_access_file(home), {"port": access.port, "token": access.token})
    # Prometheus reads a token from a file that holds nothing else.
    replace_private(home.data / "dashboard.token", access.token.encode())


def _access_file(home: Home) -> Path:
    return home.data / "dashboard.json"
