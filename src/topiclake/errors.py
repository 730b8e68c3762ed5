"""The errors of Topiclake.

    TopiclakeError
    ├── ConfigError             a key, a file or a parameter is wrong
    ├── PlatformError           Java, Spark, a jar or a JVM option is missing
    ├── KafkaError              the broker cannot be used
    │   ├── TopicNotFoundError
    │   └── OffsetsLostError    Kafka no longer holds offsets of the checkpoint
    ├── LoginError              a token or a client certificate cannot be used
    ├── SchemaRegistryError     the registry cannot be used
    │   └── SubjectNotFoundError
    ├── StorageError            a mount, a folder or a container cannot be used
    ├── DatabaseError           a database cannot be used
    ├── NotificationError       a webhook does not accept a notification
    ├── EventStreamError        a server of events cannot be used
    ├── EncodeError             a row does not fit the schema that it is to be written with
    ├── DecodeError             a record cannot be decoded, in mode FAILFAST
    └── IngestError             a streaming query ended for another reason
        └── NewSchemaError      a record has a schema that came after the query's start

An error's text names the cause, the allowed values and a remedy, but no secret. Each class has an id, which
ends the text and never changes. The fields hold the values in the text.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

#: An error's id at the end of its text.
_ID = re.compile(r" \[TL-(?:[A-Z]+-)?\d{3}\]")
#: Spark's errors for a checkpoint's file that another query wrote first; the store decides which.
SECOND_QUERY = re.compile(r"Multiple streaming queries are concurrently using|CONCURRENT_STREAM_LOG_UPDATE")


class TopiclakeError(Exception):
    """An error whose text is one sentence with the cause, the remedy, and the id of its class.

    Args:
        cause: The failure, with its names (topic, partition, offset, subject, file, key).
        remedy: The next command or change to try; shown after the cause.
        fields: Values in the text, by their noun. They are plain values, so that they can be pickled.
    """

    id: ClassVar[str] = "TL-000"

    def __init__(self, cause: str, remedy: str = "", **fields: object) -> None:
        self.cause = cause
        self.remedy = remedy
        self.fields = fields
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type[TopiclakeError], tuple[str, str], dict[str, object]]:
        """Pickle by parts and fields: Spark carries errors from its Python workers to the driver."""
        return type(self), (self.cause, self.remedy), {"fields": self.fields}

    def _text(self) -> str:
        """Return cause, remedy and one id: the id of this class, or the one that the cause already has."""
        if self.remedy:
            return f"{_ID.sub('', self.cause)}; try: {self.remedy} [{self.id}]"
        return self.cause if _ID.search(self.cause) else f"{self.cause} [{self.id}]"


class ConfigError(TopiclakeError):
    """A configuration key, file, widget or job parameter is unknown, missing or of the wrong type.

    Correct the key, file, widget or parameter that the text names.
    """

    id: ClassVar[str] = "TL-CONFIG-001"


class PlatformError(TopiclakeError):
    """Java, Spark, a jar or a JVM option that the pipeline needs is missing or wrong.

    Install the part, or set the option, that the text names. `topiclake doctor` checks a laptop.
    """

    id: ClassVar[str] = "TL-PLATFORM-001"


class KafkaError(TopiclakeError):
    """The broker cannot be reached, refuses the login, or refuses the request.

    Check `kafka.bootstrap_servers`, the login and the broker's log.
    """

    id: ClassVar[str] = "TL-KAFKA-001"


class TopicNotFoundError(KafkaError):
    """The broker answers, but does not hold the topic.

    Correct the name; the text lists similar ones. Or create the topic, or set `wait_for_topic`.
    """

    id: ClassVar[str] = "TL-KAFKA-002"


class OffsetsLostError(KafkaError):
    """Kafka no longer holds offsets that the checkpoint asks for.

    Keep records longer in Kafka. To continue without them, set `fail_on_data_loss: false`.
    """

    id: ClassVar[str] = "TL-KAFKA-003"


class LoginError(TopiclakeError):
    """An OAuth server or a cloud returns no token, or a client certificate cannot be used.

    Check the credential, its dates and its audience. Then start the query again.
    """

    id: ClassVar[str] = "TL-LOGIN-001"


class SchemaRegistryError(TopiclakeError):
    """The schema registry cannot be reached, refuses the login, or refuses the request.

    Check `schema_registry.url` and the login. A running query retries for `retry_seconds` first.
    """

    id: ClassVar[str] = "TL-REGISTRY-001"


class SubjectNotFoundError(SchemaRegistryError):
    """The registry answers, but does not hold the subject.

    Register a schema, or correct `subject`; the text lists similar ones.
    """

    id: ClassVar[str] = "TL-REGISTRY-002"


class StorageError(TopiclakeError):
    """A mount, folder, container or bucket cannot be used.

    Check the path, the credential and the free space that the text names.
    """

    id: ClassVar[str] = "TL-STORAGE-001"


class DatabaseError(TopiclakeError):
    """A database cannot be reached, refuses the login, or refuses the statements of the sink.

    Check the address, the login and the rights of the user in the database.
    """

    id: ClassVar[str] = "TL-DATABASE-001"


class NotificationError(TopiclakeError):
    """A webhook cannot be reached, or refuses a notification.

    Check the address of the webhook. The next start sends the batch again.
    """

    id: ClassVar[str] = "TL-NOTICE-001"


class EventStreamError(TopiclakeError):
    """A server of events (server-sent events) cannot be reached, or refuses the request.

    Check the address of the server. The next run continues after the last event.
    """

    id: ClassVar[str] = "TL-EVENTS-001"


class EncodeError(TopiclakeError):
    """A row does not fit the schema that it is to be written with; names its column and its key.

    Cast the column, or register a schema that fits the row.
    """

    id: ClassVar[str] = "TL-ENCODE-001"


class DecodeError(TopiclakeError):
    """A record cannot be decoded, in mode FAILFAST; names topic, partition, offset and reason.

    Print the record with `topiclake consume`. Or choose mode PERMISSIVE, which quarantines it.
    """

    id: ClassVar[str] = "TL-DECODE-001"


class IngestError(TopiclakeError):
    """A streaming query ended for a reason that no other error names.

    Follow the text: it names the query, the checkpoint or the table, and the next command.
    """

    id: ClassVar[str] = "TL-INGEST-001"


class NewSchemaError(IngestError):
    """A record has a schema that was not known when its query started; nothing is lost.

    The next start knows the schema; `topiclake.start_restarted` restarts the query.
    """

    id: ClassVar[str] = "TL-INGEST-002"


def require_extra(extra: str, module: str) -> None:
    """Raise a PlatformError unless the module of an extra of this project is installed."""
    try:
        is_installed = find_spec(module) is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise PlatformError(
            f"{module} is not installed",
            f"pip install 'topiclake[{extra}]'",
            module=module,
            extra=extra,
            reason="extra",
        )


def require_choice(parameter: str, value: str, allowed: tuple[str, ...], *, usual: str | None = None) -> None:
    """Raise a ConfigError unless an argument is one of the allowed words.

    Args:
        parameter: The argument's name.
        value: The argument's value.
        allowed: The words.
        usual: The word to try; by default the first.
    """
    if value not in allowed:
        raise ConfigError(
            f"{parameter} is {value!r}; allowed: {', '.join(allowed)}",
            f"set {parameter}='{usual or allowed[0]}'",
            parameter=parameter,
            found=value,
            allowed=allowed,
        )


def require_known_columns(parameter: str, names: Iterable[str], columns: list[str]) -> None:
    """Raise a ConfigError unless all columns that an argument names are columns of the rows."""
    for name in names:
        if name not in columns:
            raise ConfigError(
                f"{parameter} names {name}, which the rows don't have",
                f"use {', '.join(columns)}",
                parameter=parameter,
                column=name,
            )
