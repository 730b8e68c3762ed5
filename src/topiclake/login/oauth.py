"""Tokens of an OAuth server for an application with client credentials (RFC 6749, section 4.4)."""

from __future__ import annotations

import base64
import json
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import time
from typing import Any

import httpx

from topiclake.config.login import OAuthClientSettings
from topiclake.errors import LoginError

#: Seconds until an OAuth server that does not answer is an error.
TIMEOUT_SECONDS = 10.0
#: Validity of a token whose server does not say it (s).
_USUAL_SECONDS = 300.0
#: The year 2200, in seconds after 1970: a later time is a mistake of its server.
_LATEST = 7_258_118_400
#: The error codes of RFC 6749. Only these are shown: a server may repeat the request in another text.
_CODES = (
    *("invalid_request", "invalid_client", "invalid_grant"),
    *("unauthorized_client", "unsupported_grant_type", "invalid_scope"),
)


@dataclass(frozen=True)
class Token:
    """An access token.

    Attributes:
        text: The token; never shown.
        expires_at: When it ends, in seconds since 1970.
    """

    text: str = field(repr=False)
    expires_at: float

    def problem(self) -> str:
        """Return why a server may refuse the token: its times, or else its audience and its issuer."""
        claims, now = _claims(self.text), time()
        if self.expires_at <= now:
            return f"it expired at {_moment(self.expires_at)}"
        not_before = claims.get("nbf")
        if isinstance(not_before, int | float) and not_before > now:
            return f"it is not valid before {_moment(not_before)}"
        return f"its audience is {claims.get('aud')!r}, and its issuer {claims.get('iss')!r}"


@dataclass(frozen=True)
class OAuthClient:
    """An application at an OAuth server; `OAuthClientSettings` of the configuration describes its fields."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    ca_file: str | None = None
    logical_cluster: str | None = None
    identity_pool_id: str | None = None

    @classmethod
    def from_settings(cls, settings: OAuthClientSettings) -> OAuthClient:
        """Build it from the configuration; the secret is resolved here."""
        return cls(
            settings.token_url,
            settings.client_id,
            settings.client_secret.reveal(),
            settings.scope,
            str(settings.ca_file) if settings.ca_file else None,
            settings.logical_cluster,
            settings.identity_pool_id,
        )

    def request_token(self) -> Token:
        """Return a new token.

        Raises:
            LoginError: The server does not answer, refuses the application, or returns no token.
        """
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        try:
            response = httpx.post(
                self.token_url,
                data=form,
                auth=(self.client_id, self.client_secret),
                verify=ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True,
                timeout=TIMEOUT_SECONDS,
            )
        except (httpx.RequestError, httpx.InvalidURL, OSError) as error:
            detail = str(error) or type(error).__name__
            raise LoginError(
                f"the OAuth server at {self.token_url} does not answer ({detail})",
                "check token_url and ca_file of oauth, and the network",
                url=self.token_url,
                reason="unreachable",
            ) from None
        return self._token(response)

    def _token(self, response: httpx.Response) -> Token:
        try:
            body: Any = response.json()
        except ValueError:
            body = None
        body = body if isinstance(body, dict) else {}
        fields = {"url": self.token_url, "client_id": self.client_id, "status": response.status_code}
        if response.status_code in (400, 401, 403):
            code = f": {body['error']}" if body.get("error") in _CODES else ""
            raise LoginError(
                f"the OAuth server at {self.token_url} refuses the client {self.client_id} "
                f"(HTTP {response.status_code}{code})",
                "check client_id, scope and the secret client_secret of oauth",
                **fields,
                reason="client",
            )
        text = body.get("access_token")
        if response.status_code != 200 or not isinstance(text, str):
            raise LoginError(
                f"the OAuth server at {self.token_url} answers HTTP {response.status_code} without a token",
                "check token_url of oauth, and the log of the server",
                **fields,
                reason="no_token",
            )
        end = _claims(text).get("exp")
        lifetime = body.get("expires_in")
        if not isinstance(end, int | float):
            # Servers need not say how long a token is valid, and some say it as text.
            end = time() + (float(lifetime) if str(lifetime).isdecimal() else _USUAL_SECONDS)
        return Token(text, float(end))


class RenewedToken:
    """The token of an application, requested again before it ends.

    Args:
        client: The application.
    """

    def __init__(self, client: OAuthClient) -> None:
        self._client = client
        self._token: Token | None = None
        self._renew_at = 0.0

    def current(self) -> Token:
        """Return a token that is valid for a fifth of its lifetime at least; raises as `request_token`."""
        now = time()
        if self._token is None or now >= self._renew_at:
            self._token = self._client.request_token()
            self._renew_at = now + 0.8 * (self._token.expires_at - now)
        return self._token

    def problem(self) -> str:
        """Return why a server may refuse the last token; empty before the first one."""
        return self._token.problem() if self._token else ""


def _claims(text: str) -> dict[str, Any]:
    """Return the claims of a JSON Web Token, unverified; none if it is another kind of token."""
    try:
        part = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _moment(seconds: float) -> str:
    if not 0 <= seconds < _LATEST:
        return f"{seconds:g} seconds after 1970"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
