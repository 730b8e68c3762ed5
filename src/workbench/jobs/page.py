"""A page on loopback with jobs, runs, durations and saved notebooks; a token is asked for."""

from __future__ import annotations

import html
import secrets
import threading
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from topiclake.errors import TopiclakeError
from workbench.host.page_access import PageAccess
from workbench.host.ports import HOST
from workbench.jobs.bundle_model import Job
from workbench.jobs.history import History
from workbench.jobs.run_records import Attempt, Run, shown_time

COOKIE = "workbench_jobs"
_HEAD = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="10"><title>Jobs</title>
<style>body{font-family:sans-serif;margin:2em}table{border-collapse:collapse;margin-bottom:2em}
td,th{text-align:left;padding:.3em 1em;border-bottom:1px solid #ddd}</style>"""


class JobsPage:
    """The page's server; it listens as soon as it is made.

    Args:
        history: What is shown.
        jobs: Returns the jobs as the scheduler knows them.
        notebooks: The folder that holds saved notebooks; nothing else is served.
        port: Where to listen; 0 for one that the system picks.
    """

    def __init__(
        self, history: History, jobs: Callable[[], Mapping[str, Job]], notebooks: Path, port: int = 0
    ) -> None:
        self._history, self._jobs, self._notebooks = history, jobs, notebooks.resolve()
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: addresses carry the token."""

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._access = PageAccess(self._server.server_port, secrets.token_urlsafe(32))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        """The address, with the token."""
        return self._access.url

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a GET."""
        asked = urlsplit(request.path)
        if not self._access.is_own(request.headers.get("Host", "")):
            _send(request, 403, "this name is not mine")
        elif self._access.fits(parse_qs(asked.query).get("token", [""])[0]):
            cookie = f"{COOKIE}={self._access.token}; HttpOnly; SameSite=Strict; Path=/"
            _send(request, 303, "", {"Location": asked.path, "Set-Cookie": cookie})
        elif not self._access.fits(_cookie(request)):
            _send(request, 401, "the address with its token is what `job start` has printed")
        elif asked.path == "/":
            _send(request, 200, self.overview())
        else:
            self._send_notebook(request, asked.path)

    def overview(self) -> str:
        """Return the page."""
        jobs = [[html.escape(key), html.escape(job.description)] for key, job in sorted(self._jobs().items())]
        runs = [self._row(run) for run in self._history.runs(limit=100)]
        heads = ["Run", "Job", "Began (UTC)", "By", "State", "Duration", "Notebooks"]
        shown = f"<h1>Jobs</h1>{_table(['Job', 'What it does'], jobs)}<h1>Runs</h1>{_table(heads, runs)}"
        return _HEAD + shown

    def _row(self, run: Run) -> list[str]:
        links = [_link(attempt) for attempt in self._history.attempts(run.id)]
        began = shown_time(run.started or run.created)
        state = f'<span title="{html.escape(run.reason)}">{run.state}</span>'
        return [str(run.id), html.escape(run.job), began, run.trigger, state, run.duration, " ".join(links)]

    def _send_notebook(self, request: BaseHTTPRequestHandler, path: str) -> None:
        try:
            _, run, task, attempt = path.split("/")
            attempts = [
                candidate
                for candidate in self._history.attempts(int(run))
                if (candidate.task, str(candidate.attempt)) == (task, attempt)
            ]
            file = Path(attempts[0].page).resolve()
            if not attempts[0].page or not file.is_relative_to(self._notebooks):
                raise FileNotFoundError
            text = file.read_text("utf-8")
        except (ValueError, IndexError, OSError, TopiclakeError):
            _send(request, 404, "there is no such notebook")
            return
        # A notebook may hold any script: it must not reach this page.
        _send(request, 200, text, {"Content-Security-Policy": "sandbox allow-scripts"})


def _cookie(request: BaseHTTPRequestHandler) -> str:
    try:
        cookie = SimpleCookie(request.headers.get("Cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""


def _link(attempt: Attempt) -> str:
    label = html.escape(
        f"{attempt.task} ({attempt.state})"
        if attempt.attempt == 1
        else f"{attempt.task} #{attempt.attempt} ({attempt.state})"
    )
    return (
        f'<a href="/{attempt.run}/{html.escape(attempt.task)}/{attempt.attempt}">{label}</a>'
        if attempt.page
        else label
    )


def _table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table; the cells are HTML already."""
    head = "".join(f"<th>{title}</th>" for title in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _send(
    request: BaseHTTPRequestHandler, status: int, text: str, headers: Mapping[str, str] | None = None
) -> None:
    body = text.encode()
    request.send_response(status)
    default = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body))}
    safe = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
    for name, value in (default | safe | dict(headers or {})).items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
