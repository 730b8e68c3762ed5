"""Errors of a store that cannot be used, each as one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pydantic import ValidationError
from pyspark.errors import PySparkException

from topiclake.config import table_name
from topiclake.config.secret import Secret
from topiclake.config.storage import OAuthSettings, StorageSettings, hadoop_address, without_login
from topiclake.errors import SECOND_QUERY, StorageError
from topiclake.storage import expiry

_THROWN = re.compile(r"^(?:Caused by|:)?[: ]*[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
#: Some of Hadoop's errors have no class name.
_NAMELESS = re.compile(r"^: (.+)$", re.MULTILINE)
#: The stack frames in a JVM's text.
_FRAMES = re.compile(r"^\s+(?:at |\.\.\. ).*$", re.MULTILINE)
_URIS = re.compile(r"\b[a-z][a-z0-9+.-]*:/[^\s\"']*")
#: Hadoop shows an account key that is not base64.
_SECRETS = re.compile(
    r"(?<=sig=)[^&\s]+|(?<=Request ID: )[^)]+|(?<=\?)[^\s?,=]+=[^\s,]*"
    r"|(?s:(?<=key =\")(?!null\").*?(?=\"(?:: |\s|$)))"
)
#: Azure's message and status, which an address and a query follow.
_ABFS = re.compile(r'Operation failed: "(.*?)", (\d{3}), [A-Z]+, ', re.DOTALL)

_NO_KEY = re.compile(r"key =\"\[REDACTED\]\"|not a valid Base64")
_MISSING = re.compile(
    r"NoSuchBucket|ContainerNotFound|FilesystemNotFound|specified (?:container|filesystem) does not"
)
_SKEWED = re.compile(
    r"RequestTimeTooSkewed|RequestExpired|request time.{1,40}current time"
    r"|[Dd]ate header (?:is )?too (?:old|new)|Make sure (?:that )?the (?:value of (?:the )?)?[Dd]ate header"
)
_ENDED = re.compile(r"ExpiredToken|InvalidToken|token has expired")
_REGION = re.compile(r"AuthorizationHeaderMalformed|PermanentRedirect|Status Code: 30[17]")
#: S3 answers a HEAD request without a body, so Hadoop knows the status only, not the reason.
_UNNAMED = re.compile(
    r"S3, Status Code: 400[^)]*\)(?: \([^)]*\))*:null\b"
    r"|S3Exception: (?:null|Bad Request)? ?\(Service: S3, Status Code: 400"
)
_MAY_NOT_WRITE = re.compile(
    r"AuthorizationPermissionMismatch|(?:PUT|Writing Object) .*Status Code: 403|ReadOnly"
)
_REFUSED = re.compile(
    r"failed to authenticate|not authorized|Authori[sz]ation\w*(?:Failure|Mismatch)"
    r"|(?:[Cc]ode|HTTP (?:[Ee]rror|[Rr]esponse|status))[:= ]{1,2}40[13]\b|\", 40[13], [A-Z]"
    r"|\b40[13] (?:Unauthorized|Forbidden)|Authentication information is not given|InvalidAccessKeyId"
    r"|No user exists|SignatureDoesNotMatch|NoAuth|CredentialInitialization"
)
_WRONG_MD5 = re.compile(r"Blob hash mismatch")
_UNCONDITIONAL = re.compile(r"no notice of If-None-Match")
_UNREACHABLE = re.compile(r"ConnectException|UnknownHostException|Connection refused|timed out|NoRouteToHost")
#: Another store uses the same words for other causes.
_OF_S3 = (_ENDED, _REGION, _UNNAMED)
#: A pattern, and the code, the cause and the remedy of the errors that match it.
_Answer = tuple[re.Pattern[str], str, str, str]


@contextmanager
def storage_errors(storage: StorageSettings, path: str) -> Iterator[None]:
    """Run the first access to `path`, and raise an error of storage as one sentence without a stack trace.

    Args:
        storage: The configured storage.
        path: Resolved location of a table; it may be a name, or a path in another store.

    Raises:
        StorageError: The container, bucket, region or credential is wrong, the store is unavailable, or the
            location cannot be used.

    Example:
        >>> with tl.storage_errors(settings.storage, tl.table_path(settings)):
        ...     spark.table(tl.table_identifier(settings)).count()
        4
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise refusal(storage, path, error) from None


def refusal(storage: StorageSettings, path: str, error: Exception) -> StorageError:
    """Return the error that `storage_errors` raises for an error of Spark."""
    text = without_login(_SECRETS.sub("[REDACTED]", str(error)))
    # Paths and stack frames do not show the cause, but could match a pattern.
    searched = _URIS.sub(" ", _FRAMES.sub("", text.replace(path, " ")))
    return _named(storage, path, searched, _cause(text))


def _cause(text: str) -> str:
    problem = (_THROWN.findall(text) or _NAMELESS.findall(text) or [_FRAMES.sub("", text)])[-1]
    if "Operation failed:" in problem and (answers := _ABFS.findall(text)):
        message, status = answers[-1]
        problem = f"{message.rstrip('.')}, status {status}"
    return " ".join(problem.split())[:300].rstrip(".")


def _opened_by(storage: StorageSettings, path: str) -> StorageSettings | None:
    """Return the storage of `path`: the configured one, or another one with the machine's credential.

    None if no source has such a form, or `path` is a table's name.
    """
    if table_name.is_name(path):
        return None
    address = urlsplit(hadoop_address(path))
    if address.scheme in ("", "dbfs") or address[:2] == urlsplit(hadoop_address(storage.source))[:2]:
        return storage
    try:
        return StorageSettings.model_validate({"source": path, "mount_point": storage.mount_point})
    except ValidationError:
        return None


def _named(configured: StorageSettings, path: str, text: str, problem: str) -> StorageError:
    if SECOND_QUERY.search(text):
        return StorageError(
            f"another query has just begun with the checkpoint {without_login(path)}; nothing was lost",
            "start again when it has ended, or use a separate checkpoint_path and table_path",
            path=without_login(path),
            reason="second_query",
        )
    storage = _opened_by(configured, path)
    unusable = StorageError(
        f"{without_login(path)} cannot be used: {problem}",
        "fix the storage, or correct the path or the name",
        path=without_login(path),
        reason="unusable",
        detail=problem,
    )
    if storage is None or storage.kind in ("file", "volume"):
        return unusable
    source, secret, setting = storage.source, f"renew the secret {secret_names(storage)}", "storage.source"
    if storage is not configured:
        secret = f"use a path in {configured.source}, or give the machine a credential for this one"
        setting = "the path"
    # The first pattern that matches: later patterns match more errors.
    answers = (*_of_the_store(storage, problem, setting), *_of_the_credential(storage, problem, secret))
    for pattern, reason, cause, remedy in answers:
        if pattern.search(text) and not (pattern in _OF_S3 and storage.kind != "s3a"):
            named = {"path": without_login(path), "secrets": secret_names(storage)}
            return StorageError(
                f"{source} {cause}", remedy, source=source, reason=reason, detail=problem, **named
            )
    return unusable


def _of_the_store(storage: StorageSettings, problem: str, setting: str) -> tuple[_Answer, ...]:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    kind = "bucket" if storage.kind == "s3a" else "container"
    address = f"{kind} {urlsplit(storage.source).netloc.partition('@')[0]}"
    return (
        (
            _UNCONDITIONAL,
            "unconditional_put",
            f"is not safe from a second driver: {problem}",
            "use a store that keeps to it, or, for one driver only, set "
            "spark.delta.logStore.s3a.impl=io.delta.storage.S3SingleDriverLogStore",
        ),
        (_MISSING, "missing", f"cannot be used: there is no {address}", f"create it, or correct {setting}"),
        (
            _WRONG_MD5,
            "checksum",
            "holds a file that is damaged, or that abfss wrote: Hadoop's writes a wrong checksum "
            f"({problem})",
            "set storage.source to abfss://…",
        ),
        (_SKEWED, "clock", f"refuses this machine's clock, {now} UTC ({problem})", "set the clock"),
    )


def _of_the_credential(storage: StorageSettings, problem: str, secret: str) -> tuple[_Answer, ...]:
    region = storage.region or "of this machine"
    # S3 refuses both without naming the cause.
    has_token = storage.session_token is not None
    good = expiry.validity(storage)
    return (
        (_NO_KEY, "account_key_form", "cannot be opened: its account key is not base64", secret),
        (
            _ENDED,
            "session_token",
            f"refuses the session token, which has ended or is not that of the key ({problem})",
            secret,
        ),
        (_REGION, "region", f"refuses the region {region} ({problem})", "correct storage.region"),
        (
            _UNNAMED,
            f"region{'_or_session_token' * has_token}",
            f"refuses the region {region}{', or the session token' * has_token} ({problem})",
            f"correct storage.region{f', or {secret}' * has_token}",
        ),
        (
            _MAY_NOT_WRITE,
            "read_only",
            f"refuses the {_credential(storage)}: it may not write ({problem})",
            f"{secret}, with the permission to write",
        ),
        (
            _REFUSED,
            "credential",
            f"refuses the {_credential(storage)}{good and f', {good}'} ({problem})",
            f"{secret}{good and ', or compare the clocks'}",
        ),
        (
            _UNREACHABLE,
            "unreachable",
            f"cannot be reached ({problem})",
            "correct the address (storage.endpoint on S3), or fix the network",
        ),
    )


def _credential(storage: StorageSettings) -> str:
    """Return the kind of credential, as its store names it."""
    kinds = {"sas_token": "SAS token", "account_key": "account key", "oauth": "OAuth client"}
    return next((kinds[name] for name in storage.credentials if name in kinds), "access key")


def secret_names(storage: StorageSettings) -> str:
    """Return the names of the secrets that open the storage."""
    credentials = storage.credentials.values()
    secrets = [each.client_secret if isinstance(each, OAuthSettings) else each for each in credentials]
    return ", ".join(each.name for each in secrets if isinstance(each, Secret)) or "of the machine"
