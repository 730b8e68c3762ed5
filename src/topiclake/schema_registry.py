"""The schema registry, through Confluent's own client, with errors that name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx  # the client's own choice of httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError as ClientError

from topiclake.errors import SchemaRegistryError, SubjectNotFoundError
from topiclake.settings import SchemaRegistrySettings

Answer = TypeVar("Answer")

#: A registry that hangs must not hang the stream: seconds until a request counts as failed.
TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class SubjectVersion:
    """One version of a subject, as the registry tells it."""

    subject: str
    version: int
    schema_id: int
    schema_type: str
    schema: str


@dataclass
class SchemaRegistry:
    """A registry and what it already answered; versions of a subject never change, so they are kept.

    Args:
        url: Address of the REST API, with its path.
        username: For basic auth; None for a registry without a login; never shown.
        password: For basic auth; never shown.
        ca_file: PEM file with the authority that signed the registry's certificate.
    """

    url: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    def __post_init__(self) -> None:
        conf: dict[str, str | float] = {"url": self.url, "timeout": TIMEOUT_SECONDS}
        if self.username is not None:
            conf["basic.auth.user.info"] = f"{self.username}:{self.password}"
        if self.ca_file is not None:
            conf["ssl.ca.location"] = self.ca_file
        self._client = SchemaRegistryClient(conf)
        self._known: dict[tuple[str, int], SubjectVersion] = {}

    @classmethod
    def from_settings(cls, settings: SchemaRegistrySettings) -> SchemaRegistry:
        """Build it from the configuration; secrets are resolved here."""
        return cls(
            settings.url,
            settings.username.reveal() if settings.username else None,
            settings.password.reveal() if settings.password else None,
            str(settings.ca_file) if settings.ca_file else None,
        )

    def __reduce__(self) -> tuple[type[SchemaRegistry], tuple[str | None, ...]]:
        """Pickle the address, not the connection: Spark Connect runs micro-batches in another process."""
        return type(self), (self.url, self.username, self.password, self.ca_file)

    def latest(self, subject: str) -> SubjectVersion:
        """Return the newest version of `subject`.

        Raises:
            SubjectNotFoundError: The registry does not hold it; lists those it holds.
            SchemaRegistryError: The registry cannot be reached, refuses the login, or fails.
        """
        return self.versions(subject)[-1]

    def versions(self, subject: str) -> list[SubjectVersion]:
        """Return all versions of `subject`, oldest first; one request when nothing is new.

        Raises:
            SubjectNotFoundError: The registry does not hold it; lists those it holds.
            SchemaRegistryError: The registry cannot be reached, refuses the login, or fails.
        """
        try:
            numbers = self._ask(lambda: self._client.get_versions(subject))
        except _NotFoundError:
            there = ", ".join(self.subjects()) or "none"
            raise SubjectNotFoundError(
                f"subject {subject} is not in the schema registry at {self.url}; it holds: {there}",
                "publish to the topic once (python -m workbench run notebooks/gps_publish.py), "
                "or check the topic's name",
            ) from None
        return [self._version(subject, number) for number in sorted(numbers)]

    def subjects(self) -> list[str]:
        """Return the names of all subjects."""
        return sorted(self._ask(self._client.get_subjects))

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema under `subject`, where it is not yet, and return its id.

        Raises:
            SchemaRegistryError: The schema is not compatible with the subject's earlier versions, or the
                registry cannot be used.
        """
        return int(self._ask(lambda: self._client.register_schema(subject, Schema(schema, "AVRO"))))

    def _version(self, subject: str, number: int) -> SubjectVersion:
        key = subject, number
        if key not in self._known:
            found = self._ask(lambda: self._client.get_version(subject, number))
            schema = found.schema
            if found.schema_id is None or schema is None or schema.schema_str is None:
                raise SchemaRegistryError(f"version {number} of subject {subject} comes without id or schema")
            self._known[key] = SubjectVersion(
                subject, number, found.schema_id, schema.schema_type or "AVRO", schema.schema_str
            )
        return self._known[key]

    def _ask(self, request: Callable[[], Answer]) -> Answer:
        """Send a request; the client itself repeats it three times on 429, 5xx and a broken connection."""
        try:
            return request()
        except ClientError as error:
            if error.http_status_code == 404:
                raise _NotFoundError(str(error)) from None
            raise self._refused(error) from None
        except httpx.TransportError as error:
            raise SchemaRegistryError(
                f"the schema registry at {self.url} does not answer ({_reason(error)})",
                "python -m workbench status, or check schema_registry.url and ca_file, and the network",
            ) from None

    def _refused(self, error: ClientError) -> SchemaRegistryError:
        if error.http_status_code in (401, 403):
            refusal = "wants a login" if self.username is None else "refuses the login"
            return SchemaRegistryError(
                f"the schema registry at {self.url} {refusal} (HTTP {error.http_status_code})",
                "check the secrets schema_registry.username and schema_registry.password",
            )
        return SchemaRegistryError(
            f"the schema registry at {self.url} answers HTTP {error.http_status_code}: {error.error_message}",
            "look at the registry's log (python -m workbench logs registry)",
        )


class _NotFoundError(Exception):
    """The registry answered 404."""


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
