"""Notifications to a webhook: one POST request with JSON, with retries after transient errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import requests
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from topiclake.config.settings import Settings
from topiclake.errors import ConfigError, NotificationError

#: Timeout of a request to connect, and to answer (s).
TIMEOUT_SECONDS = 10
_BUSY = (408, 425, 429)


class _TransientError(Exception):
    """A transient error; its text is the reason."""


@dataclass(frozen=True)
class Webhook:
    """An address that accepts JSON; can be pickled, for Spark Connect."""

    url: str = field(repr=False)
    ca_file: str | None
    retry_seconds: float

    @staticmethod
    def from_settings(settings: Settings) -> Webhook | None:
        """Return the webhook of a configuration, or None if it has no webhook.

        Raises:
            ConfigError: The secret is not an address.
        """
        section = settings.webhook
        if section is None:
            return None
        url = section.url.reveal().strip()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"the secret {section.url.name} is no address",
                "use https://<host>/<path>",
                secret=section.url.name,
            )
        return Webhook(url, str(section.ca_file) if section.ca_file else None, section.retry_seconds)

    @property
    def host(self) -> str:
        """The webhook's name in errors: its path and query are secret."""
        return str(urlsplit(self.url).hostname)

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, and return when the webhook has accepted it.

        Raises:
            NotificationError: The webhook refuses the message, or has not accepted it within `retry_seconds`.
        """
        tries = Retrying(
            retry=retry_if_exception_type(_TransientError),
            wait=wait_exponential_jitter(initial=0.5, max=10),
            stop=stop_after_delay(self.retry_seconds),
            reraise=True,
        )
        try:
            tries(self._send_once, message)
        except _TransientError as error:
            waited = f"within {self.retry_seconds:g} s"
            raise NotificationError(
                f"the webhook at {self.host} did not accept a notification {waited}: {error}",
                "start it again when the webhook answers: the notification is sent then",
                server=self.host,
                reason="busy",
                detail=str(error),
            ) from None

    def _send_once(self, message: Mapping[str, object]) -> None:
        # The errors of `requests` contain the whole address.
        try:
            response = requests.post(
                self.url,
                json=message,
                timeout=TIMEOUT_SECONDS,
                verify=self.ca_file or True,
                allow_redirects=False,
            )
        except requests.exceptions.SSLError:
            raise NotificationError(
                f"no TLS connection to the webhook at {self.host}",
                "check webhook.ca_file",
                server=self.host,
                reason="tls",
            ) from None
        except requests.RequestException as error:
            raise _TransientError(type(error).__name__) from None
        if response.status_code in _BUSY or response.status_code >= 500:
            raise _TransientError(f"HTTP {response.status_code}")
        if not response.ok or response.is_redirect:
            raise NotificationError(
                f"the webhook at {self.host} refuses notifications: HTTP {response.status_code}",
                "check the secret webhook.url",
                server=self.host,
                reason="refused",
                status=response.status_code,
            )


def message(pipeline: str, notifications: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the message: `text` for people, as chats show it, and each notification for programs."""
    lines = [f"{notification['kind']}: {notification['text']}" for notification in notifications]
    return {"text": "\n".join([f"Topiclake, pipeline {pipeline}", *lines]), "pipeline": pipeline} | {
        "notices": list(notifications)
    }
