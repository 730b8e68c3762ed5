"""Every error that Topiclake raises on purpose.

    TopiclakeError
    ├── ConfigError             a key, a file or a parameter is wrong
    ├── PlatformError           Java, Spark, a jar or a JVM option is missing
    ├── KafkaError              the broker cannot be used
    │   ├── TopicNotFoundError
    │   └── OffsetsLostError    Kafka no longer holds what the checkpoint asks for
    ├── SchemaRegistryError     the registry cannot be used
    │   └── SubjectNotFoundError
    ├── StorageError            a mount, a folder or a container cannot be used
    ├── DatabaseError           a database cannot be used
    ├── NoticeError             a webhook does not take a notice
    ├── EventStreamError        a server of events cannot be used
    ├── EncodeError             a row does not fit the schema that it is to be written with
    ├── DecodeError             FAILFAST met a record that is not right
    └── IngestError             a streaming query ended for another reason
        └── NewSchemaError      a record has a schema that came after the query's start

Each says what failed, what was allowed, and what to try next; none carries a secret.
"""

from __future__ import annotations

import re

#: Spark's, of what another query wrote first: on some stores the one, on others the other.
SECOND_QUERY = re.compile(r"Multiple streaming queries are concurrently using|CONCURRENT_STREAM_LOG_UPDATE")


class TopiclakeError(Exception):
    """An error whose text is one sentence with the cause, and the next thing to try.

    Args:
        cause: What failed, with its names (topic, partition, offset, subject, file, key).
        remedy: The next command or change to try; shown after the cause.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(f"{cause}; try: {remedy}" if remedy else cause)

    def __reduce__(self) -> tuple[type[TopiclakeError], tuple[str, str]]:
        """Pickle by both parts: Spark carries errors from its Python workers to the driver."""
        return type(self), (self.cause, self.remedy)


class ConfigError(TopiclakeError):
    """A configuration key, file, widget or job parameter is unknown, missing or of the wrong type."""


class PlatformError(TopiclakeError):
    """Java, Spark, a jar or a JVM option that the pipeline needs is missing or wrong."""


class KafkaError(TopiclakeError):
    """The broker cannot be reached, refuses the login, or refuses the request."""


class TopicNotFoundError(KafkaError):
    """The broker answers, but does not hold the topic."""


class OffsetsLostError(KafkaError):
    """Kafka no longer holds offsets that the checkpoint asks for."""


class SchemaRegistryError(TopiclakeError):
    """The schema registry cannot be reached, refuses the login, or refuses the request."""


class SubjectNotFoundError(SchemaRegistryError):
    """The registry answers, but does not hold the subject."""


class StorageError(TopiclakeError):
    """A mount, folder, container or bucket cannot be used."""


class DatabaseError(TopiclakeError):
    """A database cannot be reached, refuses the login, or refuses what the sink needs to do there."""


class NoticeError(TopiclakeError):
    """A webhook cannot be reached, or refuses a notice."""


class EventStreamError(TopiclakeError):
    """A server of events (server-sent events) cannot be reached, or refuses the request."""


class EncodeError(TopiclakeError):
    """A row does not fit the schema that it is to be written with; names its column and its key."""


class DecodeError(TopiclakeError):
    """Mode FAILFAST met a record that does not decode; names topic, partition, offset and reason."""


class IngestError(TopiclakeError):
    """A streaming query ended for a reason that no other error names."""


class NewSchemaError(IngestError):
    """A record has a schema that was not known when its query started; nothing is lost.

    Another start knows it; `topiclake.start_restarted` does that.
    """
