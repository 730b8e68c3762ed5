"""Requests to a schema registry, and what counts as an answer.

The response of a registry that is down, slow or overloaded, or of a broken proxy, says nothing about a
schema. So only JSON of the expected shape, and the registry's own "not found", are answers. After any other
response, the client asks again. Confluent's client drops `Retry-After`, and its timeout does not bound the
time of a body.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from threading import BoundedSemaphore, Lock
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from topiclake.errors import ConfigError, LoginError, SchemaRegistryError
from topiclake.login.certificate import ClientCertificate, tls_context
from topiclake.login.oauth import OAuthClient, RenewedToken
from topiclake.schema_registry.retries import Clock, FaultError, RateLimit

Answer = TypeVar("Answer")
#: User name and password, or what else adds the header of the login to a request.
Login = tuple[str, str] | httpx.Auth

#: The registry's own error codes for what it does not hold.
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403

#: Where schemas are found by GUID: Confluent's registry has it from 8.0 on, Apicurio has not.
GUIDS = "/schemas/guids/"

#: The number of requests at once, at most, since topics of a query may all ask at its start.
_REQUESTS_AT_ONCE = 5

#: A longer `Retry-After` is not waited for: seconds.
LONGEST_RETRY_AFTER = 60.0

_CHECK_URL = "check schema_registry.url, and the proxy in front of the registry"
#: Characters of a token in a header (https://www.rfc-editor.org/rfc/rfc9110#section-5.5).
_TOKEN = re.compile(r"[\x21-\x7e]+")
_LOOK_AT_LOG = "look at the registry's log (python -m workbench logs registry)"


class BearerToken(httpx.Auth):
    """A login by a bearer token.

    Args:
        source: The token, or the application that asks an OAuth server for it.
    """

    def __init__(self, source: OAuthClient | str) -> None:
        self._renewed = RenewedToken(source) if isinstance(source, OAuthClient) else None
        self._fixed = "" if isinstance(source, OAuthClient) else source
        self._ids = _confluent_headers(source) if isinstance(source, OAuthClient) else {}

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; a token that ends soon is renewed.

        Raises:
            LoginError: The OAuth server returns no token, or no header can have the token.
        """
        text = (self._renewed.current().text if self._renewed else self._fixed).strip()
        # The errors of HTTP clients would quote the header.
        if not _TOKEN.fullmatch(text):
            raise LoginError(
                "the token for the registry is empty, or has characters that no header can have",
                "check the secret schema_registry.token, or the OAuth server",
                reason="token",
            )
        return {"Authorization": f"Bearer {text}", **self._ids}

    def problem(self) -> str:
        """Return why the registry may refuse the token of an OAuth server; empty for another token."""
        return f": {self._renewed.problem()}" if self._renewed else ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the request with the token; httpx calls it."""
        request.headers.update(self.headers())
        yield request


def _confluent_headers(client: OAuthClient) -> dict[str, str]:
    """Return the headers by which Confluent Cloud finds the registry and the identity pool."""
    ids = {
        "target-sr-cluster": client.logical_cluster,
        "Confluent-Identity-Pool-Id": client.identity_pool_id,
    }
    return {name: value for name, value in ids.items() if value is not None}


class NotFoundError(Exception):
    """The registry itself says that it does not hold what was asked for."""


class _Response(NamedTuple):
    path: str
    status: int
    headers: Mapping[str, str]
    content: bytes


class RegistryClient:
    """The REST API of one registry; threads may share it.

    Args:
        url: Address of the REST API, with its path, without a login.
        login: Reads user name and password for basic auth, or a bearer token. It is called again after a
            refusal, since they may have been changed. None for a registry without a login.
        ca_file: PEM file with the authority that signed the registry's certificate.
        certificate: The certificate of this client, if the registry asks for one.
        timeout: Seconds until a request counts as failed, its body included.
        clock: That of retries and limits.
    """

    def __init__(
        self,
        url: str,
        login: Callable[[], Login] | None,
        ca_file: str | None,
        certificate: ClientCertificate | None,
        timeout: float,
        clock: Clock,
    ) -> None:
        if "@" in urlsplit(url).netloc:
            raise ConfigError(
                "schema_registry.url holds a login, which errors and logs would show",
                "remove it, and make it the secrets schema_registry.username and password",
                key="schema_registry.url",
                reason="login",
            )
        if login and _is_in_clear(url):
            raise ConfigError(
                f"schema_registry.url is {url}: over http the login would go through the network in clear",
                "use https, or remove the login; http with a login is for localhost and 127.0.0.1",
                key="schema_registry.url",
                reason="in_clear",
            )
        self._url, self._name = url.rstrip("/"), f"the schema registry at {url}"
        self._login, self._timeout, self._clock, self._budget = login, timeout, clock, RateLimit(clock.now)
        self._ca_file, self._certificate = ca_file, certificate
        self._auth: Login | None = None
        self._http = self._connected()
        self._is_refused = self._has_no_guids = False
        self._listings: dict[str, tuple[float, list[Any]]] = {}
        self._slots, self._lock = BoundedSemaphore(_REQUESTS_AT_ONCE), Lock()
        self._running: dict[str, Future[Any]] = {}

    def shared(self, path: str, ask: Callable[[], Answer]) -> Answer:
        """Return or raise the result of `ask`; threads that ask for `path` meanwhile share it.

        Otherwise threads of one query would use up the requests of a minute for a path.
        """
        with self._lock:
            running = self._running.get(path)
            result: Future[Answer] = self._running.setdefault(path, Future())
        if running is not None:
            return result.result()
        try:
            result.set_result(ask())
        except BaseException as error:  # noqa: BLE001 (the caller gets it, as the other threads do)
            result.set_exception(error)
        finally:
            with self._lock:
                del self._running[path]
        return result.result()

    def get(
        self, path: str, read: Callable[[Any], Answer], patience: float, missing: Collection[int] = ()
    ) -> Answer:
        """Ask for `path` until there is an answer, at most five times a minute.

        Args:
            path: Below the registry's address, with a leading slash.
            read: Parses the JSON; raises ValueError if it is not what was asked for.
            patience: Seconds until the last try; 0 for one try.
            missing: The registry's error codes that say that it does not hold what was asked for.

        Raises:
            NotFoundError: The registry answers 404 with one of the codes `missing`.
            SchemaRegistryError: No answer within `patience`, or a refusal.
        """

        def once(seconds: float) -> Answer:
            self._budget.spend(path)
            try:
                return self._read(self._send("GET", path, None, seconds), read, missing)
            except FaultError as fault:
                self._budget.failed(path, fault)
                raise

        return self._clock.persist(once, patience, self._timeout)

    def listing(
        self,
        path: str,
        read: Callable[[Any], list[Answer]],
        patience: float,
        missing: Collection[int] = (),
        *,
        max_age: float = 0.0,
    ) -> list[Answer]:
        """Return the list at `path`, empty when the registry has none; the rest as in `get`.

        An earlier answer is returned again if it is less than `max_age` seconds old. It is also returned if
        the path was answered five times within the last minute.
        """

        def ask() -> list[Answer]:
            asked_at, answer = self._listings.get(path, (0.0, None))
            if answer is not None and (self._clock.now() - asked_at < max_age or self._budget.is_spent(path)):
                return answer
            try:
                items = self.get(path, read, patience, missing)
            except NotFoundError:
                items = []
            self._listings[path] = self._clock.now(), items
            return items

        return self.shared(path, ask)

    def forget(self, path: str) -> None:
        """Let `path` be asked again, because its content has just changed."""
        self._listings.pop(path, None)
        self._budget.forget(path)

    def post(self, path: str, body: object, read: Callable[[Any], Answer], patience: float) -> Answer:
        """Send `body`, which does no harm twice, until there is an answer; the rest as in `get`."""
        return self._clock.persist(
            lambda seconds: self._read(self._send("POST", path, body, seconds), read, ()),
            patience,
            self._timeout,
        )

    def _connected(self) -> httpx.Client:
        """Return a client with the login as it is now; the environment may name proxies and authorities."""
        self._auth = self._login() if self._login else None
        return httpx.Client(auth=self._auth, verify=tls_context(self._ca_file, self._certificate))

    def _send(self, method: str, path: str, body: object, seconds: float) -> _Response:
        """Send one request; `seconds` count for the whole body, which httpx's own timeout does not."""
        with self._slots:
            return self._sent(method, path, body, seconds)

    def _sent(self, method: str, path: str, body: object, seconds: float) -> _Response:
        if self._login and self._is_refused:
            self._http, self._is_refused = self._connected(), False
        end = time.monotonic() + seconds
        content = bytearray()
        try:
            with self._http.stream(method, self._url + path, json=body, timeout=seconds) as response:
                for part in response.iter_bytes():
                    content += part
                    if time.monotonic() > end:
                        raise httpx.ReadTimeout("the body is too slow")
        except LoginError as error:
            cause = f"no token for {self._name}: {error.cause}"
            raise FaultError(cause, error.remedy, url=self._url, path=path, reason="login") from None
        except (httpx.RequestError, httpx.InvalidURL) as error:
            timed_out = isinstance(error, httpx.TimeoutException)
            reason = f"nothing within {seconds:.0f} s" if timed_out else str(error) or type(error).__name__
            raise FaultError(
                f"{self._name} does not answer ({reason})",
                "python -m workbench status, or check schema_registry.url and ca_file, and the network",
                url=self._url,
                path=path,
                reason="timeout" if timed_out else "unreachable",
                detail=reason,
            ) from None
        return _Response(path, response.status_code, response.headers, bytes(content))

    def _read(self, response: _Response, read: Callable[[Any], Answer], missing: Collection[int]) -> Answer:
        try:
            body = json.loads(response.content)
        except ValueError:
            body = None
        code = body.get("error_code") if isinstance(body, dict) else None
        if response.status == 404 and (code in missing or self._lacks(response.path)):
            raise NotFoundError
        if not 200 <= response.status < 300:
            refusal = self._refused(response, body if code is not None else None)
            refusal.fields |= {"url": self._url, "path": response.path, "status": response.status}
            raise refusal
        try:
            return read(body)
        except ValueError as error:
            cause = f"{self._name} answers {response.path} with something else ({error})"
            raise FaultError(cause, _CHECK_URL, url=self._url, path=response.path, reason="no_json") from None

    def _lacks(self, path: str) -> bool:
        """Return whether the registry has no look-up by GUID: it does not know `path`, but another one."""
        if not path.startswith(GUIDS):
            return False
        if not self._has_no_guids:
            # Asked once: five unknown GUIDs are to cost five requests, not ten.
            try:
                types = self._send("GET", "/schemas/types", None, self._timeout)
                self._has_no_guids = types.status == 200 and isinstance(json.loads(types.content), list)
            except (FaultError, ValueError):
                return False
        return self._has_no_guids

    def _refused(self, response: _Response, body: Any) -> FaultError | SchemaRegistryError:  # noqa: ANN401 (JSON)
        """Return the registry's own refusal, which is final, or a fault; `body` is its own JSON, if so."""
        wait = _retry_after(response.headers)
        if response.status in (401, 403):
            self._is_refused = True
            refusal = "refuses the login" if self._login else "wants a login"
            remedy = "check the secrets schema_registry.username and schema_registry.password"
            problem = ""
            if isinstance(self._auth, BearerToken):
                refusal, problem = "refuses the token", self._auth.problem()
                remedy = "check schema_registry.oauth, or the secret schema_registry.token"
            return FaultError(f"{self._name} {refusal} (HTTP {response.status}){problem}", remedy, wait)
        message = f": {' '.join(str(body.get('message')).split())[:1000]}" if body else ""
        cause = f"{self._name} answers {response.path} with HTTP {response.status}{message}"
        if body and response.status in (400, 409, 422):
            return SchemaRegistryError(cause, _LOOK_AT_LOG, path=response.path, status=response.status)
        if response.status >= 429:
            return FaultError(cause, _LOOK_AT_LOG, wait)
        return FaultError(cause, _CHECK_URL, wait)


def _is_in_clear(url: str) -> bool:
    """Return whether what is sent to `url` goes over a network, and everybody on the way can read it."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        return not ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the header asks for: a number, or a date, taken by the server's own clock."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return min(float(text), LONGEST_RETRY_AFTER)
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("Date", ""))
    except (TypeError, ValueError):
        return 0.0
    return min(max(wait.total_seconds(), 0.0), LONGEST_RETRY_AFTER)
