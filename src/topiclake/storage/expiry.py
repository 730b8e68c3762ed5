"""Begin and end of a token that opens a store, and the warning before its end."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs

from topiclake.config.storage import StorageSettings
from topiclake.errors import StorageError

#: Before the settings of a shared access signature, in both of Azure's drivers.
_SAS = "fs.azure.sas."
#: A date with an optional time, which is in UTC if it has no zone.
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d)(:\d\d)?(?:\.\d+)?(Z|[+-]\d\d:\d\d)?)?")
_HOUR_SECONDS = 3600.0
#: Tolerated difference of clocks: the store decides whether a token that begins within it is valid already.
_CLOCKS_DIFFER = timedelta(minutes=5)
_LOG = logging.getLogger(__name__)

#: When the last warning about the end of a secret's token was logged, by the monotonic clock.
_reminded: dict[tuple[str, datetime], float] = {}


def start_time(token: str) -> datetime | None:
    """Return when a shared access signature begins (`st`), or None if it is valid at once; see `end_time`."""
    return _moment(token, "st")


def end_time(token: str) -> datetime | None:
    """Return when a shared access signature ends, or None if only a stored access policy may limit it.

    Source: `se`, https://learn.microsoft.com/rest/api/storageservices/create-service-sas
    """
    return _moment(token, "se")


def _moment(token: str, name: str) -> datetime | None:
    # The plus sign of a time zone may not be percent-encoded.
    text = parse_qs(token.lstrip("?")).get(name, [""])[0].replace(" ", "+")
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    date, minute, second, zone = match.groups()
    offset = "+00:00" if zone in (None, "Z") else zone
    try:
        return datetime.fromisoformat(f"{date}T{minute or '00:00'}{second or ':00'}{offset}")
    except ValueError:
        return None


def require_current(storage: StorageSettings, settings: Mapping[str, str]) -> None:
    """Warn when a token ends soon.

    Only a shared access signature contains its begin and end. An S3 session token and a key do not.

    Args:
        storage: The source, and how long before to warn.
        settings: The Hadoop settings that open it, see `access.hadoop_settings`.

    Raises:
        StorageError: It has not begun yet, or has ended.
    """
    require_started(storage, settings, _CLOCKS_DIFFER)
    end, now = _first_time(settings, end_time), _now()
    if end is None:
        return
    if end <= now:
        raise StorageError(
            f"{storage.source} cannot be opened: {_message(storage, end, now)}",
            _remedy(storage),
            source=storage.source,
            secret=_secret(storage),
            ended_at=_utc(end),
        )
    if _ends_soon(storage, end, now):
        _warn(storage, end, now)


def require_started(
    storage: StorageSettings, settings: Mapping[str, str], but_for: timedelta = timedelta()
) -> None:
    """Raise a StorageError if a token begins later than `but_for` from now, by this machine's clock."""
    begin, now = _first_time(settings, start_time), _now()
    if begin is not None and begin > now + but_for:
        raise StorageError(
            f"{storage.source} cannot be opened: {_message(storage, begin, now, 'begins')}",
            f"wait, set this machine's clock if it is wrong, or put a token that is good now into the secret "
            f"{_secret(storage)}",
            source=storage.source,
            secret=_secret(storage),
            begins_at=_utc(begin),
        )


def validity(storage: StorageSettings) -> str:
    """Return until when a token that a store refuses is valid by this machine's clock, or "" if it is not.

    The store uses its own clock, and does not report it.
    """
    if "sas_token" not in storage.credentials or storage.sas_token is None:
        return ""
    try:
        end, now = end_time(storage.sas_token.reveal()), _now()
    except Exception:  # noqa: BLE001 (the refusal is reported, whatever else fails)
        return ""
    if end is None or end <= now:
        return ""
    return f"good until {_utc(end)} by this machine's clock, {_utc(now)}"


def remind(storage: StorageSettings, settings: Mapping[str, str]) -> None:
    """Warn when a token ends soon or has ended, at most once an hour for each token."""
    end, now = _first_time(settings, end_time), _now()
    if end is None or not _ends_soon(storage, end, now):
        return
    token = _secret(storage), end
    if time.monotonic() - _reminded.get(token, -_HOUR_SECONDS) >= _HOUR_SECONDS:
        _reminded[token] = time.monotonic()
        _warn(storage, end, now)


def _first_time(settings: Mapping[str, str], moment_of: Callable[[str], datetime | None]) -> datetime | None:
    moments = [moment_of(value) for key, value in settings.items() if key.startswith(_SAS)]
    return next(filter(None, moments), None)


def _ends_soon(storage: StorageSettings, end: datetime, now: datetime) -> bool:
    return end - now <= timedelta(hours=storage.expiry_warning_hours)


def _warn(storage: StorageSettings, end: datetime, now: datetime) -> None:
    _LOG.warning("%s: %s; try: %s", storage.source, _message(storage, end, now), _remedy(storage))


def _message(storage: StorageSettings, moment: datetime, now: datetime, verb: str = "ends") -> str:
    minutes = int(abs(moment - now).total_seconds() // 60)
    span = f"{minutes // 60} h {minutes % 60} min"
    verb, duration = ("ended", f"{span} ago") if moment <= now else (verb, f"in {span}")
    return (
        f"its SAS token, the secret {_secret(storage)}, {verb} at {_utc(moment)}, "
        f"{duration} by this machine's clock"
    )


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _remedy(storage: StorageSettings) -> str:
    return f"put a new token into the secret {_secret(storage)}, which running queries read each minute"


def _secret(storage: StorageSettings) -> str:
    return storage.sas_token.name if storage.sas_token is not None else ""


def _now() -> datetime:
    return datetime.now(timezone.utc)
