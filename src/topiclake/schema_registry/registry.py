"""The schema registry, as exactly-once needs it: only the registry's own response is an answer."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar
from urllib.parse import quote

from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.errors import SchemaRegistryError, SubjectNotFoundError
from topiclake.login.certificate import ClientCertificate, read_certificate
from topiclake.login.oauth import OAuthClient
from topiclake.schema_registry import answers
from topiclake.schema_registry.answers import (
    Reference,
    RegisteredSchema,
    SchemaResponse,
    SubjectVersion,
    canonical,
)
from topiclake.schema_registry.client import (
    GUIDS,
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    VERSION_NOT_FOUND,
    BearerToken,
    Login,
    NotFoundError,
    RegistryClient,
)
from topiclake.schema_registry.retries import MINUTE, Clock

__all__ = ["RegisteredSchema", "SchemaRegistry", "SubjectVersion"]

Key = TypeVar("Key", bound=int | str)

#: The number of unknown ids that are asked for within a minute, at most.
_MISSES = 5
#: The pauses between the requests for a new id, as shares of `new_id_seconds`: five requests with the first.
_SHARES = (0.1, 0.2, 0.3, 0.4)
#: The number of unknown ids that are remembered, at most; the id that was asked for last is at the end. A
#: batch does not wait for these ids again, and each gets its turn.
_REMEMBERED = 10_000


def bearer(settings: SchemaRegistrySettings) -> OAuthClient | str | None:
    """Return the bearer token of the configuration, or the application that asks for it; None without one."""
    if settings.oauth is not None:
        return OAuthClient.from_settings(settings.oauth)
    return None if settings.token is None else settings.token.reveal()


class _Lookups:
    """The lock of look-ups, and the last one that failed: its error, and how long it had waited (s)."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.failed: tuple[SchemaRegistryError, float] | None = None


@dataclass
class SchemaRegistry:
    """A registry and what it already answered: a known schema is never asked for again.

    Threads may share it. One of them at a time looks up unknown ids, since the limit of five is for all.

    Args:
        url: Address of the REST API, with its path, without a login.
        username: For basic auth; None for a registry without a login; never shown.
        password: For basic auth; never shown.
        ca_file: PEM file with the authority that signed the registry's certificate.
        patience: Seconds until a registry that does not answer is an error.
        listing_seconds: Seconds for which a list of versions or subjects is reused.
        new_id_seconds: Seconds for which an unknown id is asked for again, once, before it is unknown.
        timeout: Seconds until one request counts as failed.
        bearer: A bearer token, or the application that asks an OAuth server for tokens; never shown.
        certificate: The certificate of this client, if the registry asks for one; its key is never shown.
        login: Reads the login again after the registry refused it; not pickled.
        clock: The clock of patience, limits and memory.

    Example:
        >>> registry = tl.SchemaRegistry.from_settings(settings.schema_registry)
        >>> schema = '{"type": "record", "name": "Sensor", "fields": [{"name": "id", "type": "string"}]}'
        >>> registry.register("sensors-value", schema) == registry.latest("sensors-value").schema_id
        True
    """

    url: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    patience: float = 5.0
    listing_seconds: float = 15.0
    new_id_seconds: float = 0.0
    timeout: float = 20.0
    bearer: OAuthClient | str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = field(default=None, repr=False)
    login: Callable[[], Login] | None = field(default=None, repr=False)
    clock: Clock = field(default_factory=Clock, repr=False)

    def __post_init__(self) -> None:
        self._client = RegistryClient(
            self.url,
            self.login or self._fixed_login(),
            self.ca_file,
            self.certificate,
            self.timeout,
            self.clock,
        )
        self._schemas: dict[int | str, RegisteredSchema] = {}
        self._missing: dict[int | str, float] = {}
        self._unknown: dict[int | str, None] = {}
        self._versions: dict[Reference, SchemaResponse] = {}
        self._lookups = _Lookups()

    @classmethod
    def from_settings(cls, settings: SchemaRegistrySettings) -> SchemaRegistry:
        """Build it from the configuration; secrets are resolved here. It is impatient: see `patient`.

        Raises:
            LoginError: The client certificate cannot be used.
        """

        def login() -> Login:
            if source := bearer(settings):
                return BearerToken(source)
            return (
                settings.username.reveal() if settings.username else "",
                settings.password.reveal() if settings.password else "",
            )

        has_login = settings.username or settings.token or settings.oauth
        username, password = settings.username, settings.password
        certificate = settings.client_certificate
        return cls(
            settings.url,
            username.reveal() if username else None,
            password.reveal() if username and password else None,
            str(settings.ca_file) if settings.ca_file else None,
            bearer=bearer(settings),
            certificate=read_certificate(certificate) if certificate else None,
            login=login if has_login else None,
        )

    def _fixed_login(self) -> Callable[[], Login] | None:
        """Return the login of the fields, as after unpickling."""
        source, username, password = self.bearer, self.username, self.password or ""
        if source is not None:
            return lambda: BearerToken(source)
        return None if username is None else lambda: (username, password)

    def __reduce__(self) -> tuple[type[SchemaRegistry], tuple[object, ...]]:
        """Pickle the address, not the connection: Spark Connect runs micro-batches in another process."""
        address = (self.url, self.username, self.password, self.ca_file)
        limits = (self.patience, self.listing_seconds, self.new_id_seconds, self.timeout)
        return type(self), (*address, *limits, self.bearer, self.certificate)

    def patient(self, seconds: float) -> SchemaRegistry:
        """Return the same registry, with what it answered and its limits, and another patience."""
        same = type(self).__new__(type(self))
        same.__dict__.update(self.__dict__, patience=seconds)
        return same

    def waiting(self, settings: SchemaRegistrySettings) -> SchemaRegistry:
        """Return the same registry as micro-batches use it, for which no person waits."""
        same = self.patient(settings.retry_seconds)
        same.new_id_seconds = settings.new_id_seconds
        return same

    def latest(self, subject: str) -> SubjectVersion:
        """Return the newest version of `subject`, as `versions` lists it with `refresh`.

        Raises:
            SubjectNotFoundError: The registry does not hold it; lists those it holds.
            SchemaRegistryError: No answer within `patience`, or a refusal.
        """
        return self.versions(subject, refresh=True)[-1]

    def latest_guid(self, subject: str) -> str:
        """Return the GUID of the newest version of `subject`; raises as `latest`, or if it has no GUID."""
        guid = self.latest(subject).guid
        if guid is None:
            raise SchemaRegistryError(
                f"the schema registry at {self.url} has no GUIDs of schemas (Confluent's does from 8.0 on)",
                "pass schema_in=prefix",
                url=self.url,
                subject=subject,
                reason="no_guid",
            )
        return guid

    def latest_of(self, subjects: Iterable[str]) -> list[SubjectVersion]:
        """Return the newest version of each subject, as `latest` does."""
        return [self.latest(subject) for subject in subjects]

    def versions(self, subject: str, *, refresh: bool = False) -> list[SubjectVersion]:
        """Return all versions of `subject`, oldest first; one request when nothing is new.

        Args:
            subject: Its name.
            refresh: Whether to ask even if the last list is not old yet. A list that was asked for five times
                within the last minute is returned again, so an id that is not in it needs `by_id`.

        Raises:
            SubjectNotFoundError: The registry does not hold it; lists those it holds.
            SchemaRegistryError: No answer within `patience`, or a refusal.
        """
        path = _versions_path(subject)
        max_age = 0.0 if refresh else self.listing_seconds
        numbers = self._client.listing(
            path, answers.list_of(int), self.patience, [SUBJECT_NOT_FOUND], max_age=max_age
        )
        versions = [self._version(subject, number) for number in sorted(numbers)]
        if listed := [version for version in versions if version]:
            return listed
        subjects = self.subjects()
        raise SubjectNotFoundError(
            f"subject {subject} is not in the schema registry at {self.url}; "
            f"it holds: {', '.join(subjects) or 'none'}",
            "publish to the topic once (the examples: python -m workbench run notebooks/…_publish.py), "
            "or check the topic's name",
            url=self.url,
            subject=subject,
            allowed=tuple(subjects),
        )

    def subjects(self) -> list[str]:
        """Return the names of all subjects.

        Raises:
            SchemaRegistryError: No answer within `patience`, or a refusal.
        """
        return sorted(self._client.listing("/subjects", answers.list_of(str), self.patience))

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with this id, or None: the registry itself says that it knows no such id.

        Args:
            schema_id: Signed, as Java's clients print it, or unsigned, as its four bytes read.

        Raises:
            SchemaRegistryError: No answer within `patience`, or a refusal.
        """
        return self._registered(canonical(schema_id), "/schemas/ids/")

    def by_guid(self, guid: str) -> RegisteredSchema | None:
        """Return the schema with this GUID, or None: the registry itself says that it knows no such GUID.

        Raises:
            SchemaRegistryError: No answer within `patience`, or a refusal. A registry without look-up by GUID
                (Confluent's has it from 8.0 on, Apicurio not) knows none.
        """
        return self._registered(canonical(guid), GUIDS)

    def by_ids(
        self, ids: Iterable[Key], subjects: Sequence[str] = ()
    ) -> tuple[dict[Key, RegisteredSchema], set[Key], set[Key]]:
        """Look up ids (or GUIDs), of which many may be noise.

        New ids are asked for first, the nearest to known ids before others, because noise may be any number.
        Ids that were unknown before follow, the longest ago first. A new id that the registry does not know
        is asked for again, for `new_id_seconds`.

        Args:
            ids: As `by_id` accepts them; a string is a GUID.
            subjects: The subjects that may list a new id in the meantime.

        Returns:
            The schemas, the ids that the registry does not know, and the ids that it was not asked for. It is
            not asked after five unknown ids within the last minute.

        Raises:
            SchemaRegistryError: No answer within `patience`, or a refusal. A thread that waits for another
                one, whose patience is not shorter, fails with it.
        """
        asked = list(ids)
        if not asked:
            return {}, set(), set()
        lookups, failed_before = self._lookups, self._lookups.failed
        with lookups.lock:
            failed = lookups.failed
            # Another thread has waited for the same registry meanwhile, and at least as long.
            if failed is not None and failed is not failed_before and failed[1] >= self.patience:
                error = failed[0]
                raise SchemaRegistryError(error.cause, error.remedy, **error.fields)
            try:
                return self._looked_up(asked, subjects)
            except SchemaRegistryError as error:
                lookups.failed = error, self.patience
                raise

    def _looked_up(
        self, ids: Iterable[Key], subjects: Sequence[str]
    ) -> tuple[dict[Key, RegisteredSchema], set[Key], set[Key]]:
        schemas: dict[Key, RegisteredSchema] = {}
        unknown: list[Key] = []
        not_asked: set[Key] = set()
        for key in self._in_turn(ids):
            if not self._is_known(canonical(key)) and len(self._recent_misses()) >= _MISSES:
                not_asked.add(key)
            elif schema := self.by_id(key) if isinstance(key, int) else self.by_guid(key):
                schemas[key] = schema
            else:
                unknown.append(key)
        if self.new_id_seconds:
            self._ask_again([canonical(key) for key in unknown], subjects)
        schemas |= {key: self._schemas[canonical(key)] for key in unknown if canonical(key) in self._schemas}
        still_unknown = [key for key in unknown if key not in schemas]
        # Not before: a registry that is unavailable while an id is asked for again has not answered.
        for key in still_unknown:
            self._remember(canonical(key))
        return schemas, set(still_unknown), not_asked

    def _in_turn(self, ids: Iterable[Key]) -> list[Key]:
        # Copies: another thread may add to them meanwhile.
        known = sorted(key for key in tuple(self._schemas) if isinstance(key, int))
        turns = {key: turn for turn, key in enumerate(tuple(self._unknown), 1)}

        def turn(key: Key) -> tuple[int, int]:
            schema_key = canonical(key)
            return turns.get(schema_key, 0), _distance(schema_key, known) if isinstance(
                schema_key, int
            ) else 0

        return sorted(dict.fromkeys(ids), key=turn)

    def _remember(self, key: int | str) -> None:
        """Remember an unknown id as the one that was asked for last."""
        self._unknown.pop(key, None)
        self._unknown[key] = None
        if len(self._unknown) > _REMEMBERED:
            del self._unknown[next(iter(self._unknown))]

    def _ask_again(self, unknown: Iterable[int | str], subjects: Sequence[str]) -> None:
        """Ask for ids whose first answer was "unknown" until all are known, or `new_id_seconds` are over."""
        new = [key for key in unknown if key not in self._unknown]
        for share in _SHARES if new else ():
            self.clock.sleep(share * self.new_id_seconds)
            for subject in subjects:
                with suppress(SubjectNotFoundError):
                    self.versions(subject, refresh=True)
            new = [key for key in new if key not in self._schemas]
            for key in new:
                self._missing.pop(key, None)
                self.by_id(key) if isinstance(key, int) else self.by_guid(key)
            new = [key for key in new if key not in self._schemas]
            if not new:
                break

    def register(
        self,
        subject: str,
        schema: str,
        references: Sequence[Mapping[str, str | int]] = (),
        schema_type: str = "AVRO",
    ) -> int:
        """Register a schema under `subject`, unless it is registered already, and return its id.

        Args:
            subject: Its name.
            schema: Avro JSON, JSON Schema, or a .proto file.
            references: The schemas of other subjects that it uses: `{"name": …, "subject": …, "version": …}`.
            schema_type: AVRO, JSON or PROTOBUF.

        Raises:
            SchemaRegistryError: The schema is not compatible with the subject's earlier versions, or there is
                no answer within `patience`.
        """
        path = _versions_path(subject)
        body: dict[str, object] = {"schema": schema}
        if schema_type != "AVRO":
            body["schemaType"] = schema_type
        if references:
            body["references"] = [dict(reference) for reference in references]
        schema_id = self._client.post(path, body, answers.new_id, self.patience)
        self._missing.pop(schema_id, None)
        for listing in (path, "/subjects"):
            self._client.forget(listing)
        return schema_id

    def refusals(self, subject: str, schema: str, schema_type: str = "AVRO") -> list[str]:
        """Return why `subject` would refuse a schema as its next version; a new subject accepts any schema.

        Raises:
            SchemaRegistryError: The text is not a schema, or there is no answer within `patience`.
        """
        if subject not in self._client.listing("/subjects", answers.list_of(str), self.patience):
            return []
        body = {"schema": schema} | ({"schemaType": schema_type} if schema_type != "AVRO" else {})
        path = f"/compatibility{_versions_path(subject)}/latest?verbose=true"
        return self._client.post(path, body, answers.refusals, self.patience)

    def _version(self, subject: str, number: int) -> SubjectVersion | None:
        """Return one version; None when it was deleted since it was listed."""
        response = self._version_response(Reference(subject, number))
        if response is None or response.schema_id is None:
            return None
        schema = self._schemas.get(response.schema_id) or self._cache(response.schema_id, response)
        return SubjectVersion(
            subject,
            number,
            response.schema_id,
            schema.schema_type,
            schema.schema,
            response.guid or schema.guid,
            schema.references,
        )

    def _version_response(self, version: Reference) -> SchemaResponse | None:
        version = Reference(version.subject, version.version)
        # A schema may refer to a version that was deleted later.
        path = f"{_versions_path(version.subject)}/{version.version}?deleted=true"
        missing = SUBJECT_NOT_FOUND, VERSION_NOT_FOUND

        def ask() -> SchemaResponse:
            if version not in self._versions:
                self._versions[version] = self._client.get(path, answers.version, self.patience, missing)
            return self._versions[version]

        try:
            return self._versions.get(version) or self._client.shared(path, ask)
        except NotFoundError:
            return None

    def _registered(self, key: int | str, folder: str) -> RegisteredSchema | None:
        if not self._is_known(key):
            try:
                path = f"{folder}{key}"
                response = self._client.get(path, answers.schema, self.patience, [SCHEMA_NOT_FOUND])
            except NotFoundError:
                self._missing[key] = self.clock.now()
            else:
                self._cache(key, response)
        return self._schemas.get(key)

    def _cache(self, key: int | str, response: SchemaResponse) -> RegisteredSchema:
        """Keep a schema for ever: what an id means never changes."""
        schema_id = key if isinstance(key, int) else response.schema_id
        guid = key if isinstance(key, str) else response.guid
        references = answers.references(response, self._version_response)
        schema = RegisteredSchema(schema_id, response.schema_type, response.schema, guid, references)
        for name in (schema_id, guid):
            if name is not None:
                self._schemas[name] = schema
                self._missing.pop(name, None)
        return schema

    def _is_known(self, key: int | str) -> bool:
        return key in self._schemas or key in self._recent_misses()

    def _recent_misses(self) -> dict[int | str, float]:
        """Return the ids that the registry did not know within the last minute; it is not asked for them."""
        # A copy: another thread may change it meanwhile.
        for key in [key for key, at in tuple(self._missing.items()) if self.clock.now() - at >= MINUTE]:
            self._missing.pop(key, None)
        return self._missing


def _distance(schema_id: int, known: Sequence[int]) -> int:
    """Return how far an id is from the nearest one of `known`, which rise."""
    after = bisect(known, schema_id)
    return min((abs(schema_id - known_id) for known_id in known[max(0, after - 1) : after + 1]), default=0)


def _versions_path(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions"
