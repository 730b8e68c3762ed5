"""The records that a pipeline reads from Kafka: topics, first and last offsets, and rate."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo, model_validator

from topiclake.config.secret import Section

#: Spark's words for the two ends of a partition, in offsets of each partition.
LATEST, EARLIEST = -1, -2

#: topic → partition → offset, or → the time from which on.
PartitionOffsets = dict[str, dict[str, int]]
PartitionTimes = dict[str, dict[str, datetime]]

_STARTS = (
    'must be earliest, latest or JSON like {"gps": {"0": 23, "1": -2}} (-2: earliest, -1: latest), '
    "or a time with its zone like 2026-01-01T00:00:00Z, for all or for each partition"
)
_ENDS = (
    'must be latest or JSON like {"gps": {"0": 23, "1": -1}} (-1: latest), '
    "or a time with its zone like 2026-01-01T00:00:00Z, for all or for each partition"
)


def _starts(value: object, info: ValidationInfo) -> object:
    return _offsets(value, info, ("earliest", "latest"), _STARTS)


def _ends(value: object, info: ValidationInfo) -> object:
    ends = _offsets(value, info, ("latest",), _ENDS)
    if isinstance(ends, dict) and any(EARLIEST in offsets.values() for offsets in ends.values()):
        raise ValueError("must not end at the earliest record (-2): that is an empty range")
    return ends


def _offsets(value: object, info: ValidationInfo, words: tuple[str, ...], allowed: str) -> object:
    """Read a word, a time, or Kafka's JSON of offsets or times for each partition."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(allowed) from None
    if value in words:
        return value
    if isinstance(value, dict):
        return _of_partitions(value, info.data, allowed)
    return _time(value, allowed)


def _of_partitions(value: Mapping[Any, Any], data: Mapping[str, Any], allowed: str) -> object:
    _require_own_topics(value, data)
    parts = [item for part in value.values() for item in (part.items() if isinstance(part, dict) else [])]
    if not parts or not all(isinstance(part, dict) and part for part in value.values()):
        raise ValueError(allowed)
    if any(not re.fullmatch(r"\d+", str(partition)) for partition, _ in parts):
        raise ValueError("must name partitions by their numbers, as in " + allowed[8:])
    for name, partitions in (data.get("assign") or {}).items():
        if {int(number) for number in value.get(name, {})} != set(partitions):
            those = ", ".join(map(str, partitions))
            raise ValueError(f"must be those of the partitions {those} of topic {name}, as in assign")
    if all(type(offset) is int for _, offset in parts):
        if any(offset < EARLIEST for _, offset in parts):
            raise ValueError("must hold offsets from 0 on, -2 for the earliest or -1 for the latest")
        return _each(value, int)
    if any(type(offset) is int for _, offset in parts):
        raise ValueError("must hold offsets, or times: Spark accepts only one kind")
    return _each(value, lambda time: _time(time, allowed))


def _each(value: Mapping[Any, Any], read: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401
    return {
        str(topic): {str(partition): read(item) for partition, item in part.items()}
        for topic, part in value.items()
    }


def _require_own_topics(value: Mapping[Any, Any], data: Mapping[str, Any]) -> None:
    """Require that offsets name only topics that the pipeline reads: Spark accepts no others."""
    pattern, topic = data.get("topic_pattern"), data.get("topic")
    if pattern:
        other = [name for name in value if not re.fullmatch(pattern, str(name))]
        if other:
            raise ValueError(f"must be those of topics that match {pattern}; {other[0]} does not")
    elif topic is not None and set(value) != set(listed(topic)):
        raise ValueError(f"must be those of topic {topic} alone")


def _time(value: object, allowed: str) -> datetime:
    if isinstance(value, str):
        value = moment(value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(allowed)
    return value


def listed(topics: str) -> list[str]:
    """Return names with commas between them as a list."""
    return [name.strip() for name in topics.split(",") if name.strip()]


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return value


def _parse_assign(value: object) -> object:
    if value is None:
        return value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            value = None
    good = isinstance(value, dict) and all(
        isinstance(part, list) and part and all(type(number) is int and number >= 0 for number in part)
        for part in value.values()
    )
    if not value or not good:
        raise ValueError('must be JSON like {"gps": [0, 1]}: the partitions of each topic')
    return value


def _check_assign(value: dict[str, tuple[int, ...]] | None, info: ValidationInfo) -> object:
    if value is None:
        return value
    if info.data.get("topic_pattern"):
        raise ValueError("and topic_pattern exclude each other: leave out one of them")
    topic = info.data.get("topic")
    if topic is not None and set(value) != set(listed(topic)):
        raise ValueError(f"must name the partitions of topic {topic}, or leave out topic")
    return value


def _check_delay(value: str) -> str:
    if not re.fullmatch(r"\d+ (second|minute|hour)s?", value):
        raise ValueError("must be an interval such as '10 minutes'")
    return value


Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]
Offsets = Literal["earliest", "latest"] | datetime | PartitionOffsets | PartitionTimes


class SourceSettings(Section):
    """The records of Kafka that a pipeline reads."""

    #: A topic, or several with commas between them; then paths hold `{topic}`. Only a pipeline with
    #: `topic_pattern` or `assign` may omit it.
    topic: Text
    #: A regular expression: the topics whose whole names match it, also new ones, instead of `topic`.
    topic_pattern: Annotated[str, AfterValidator(_check_pattern)] | None = None
    #: Only these partitions, topic by topic; `topic` names the same topics, or nothing. Use it to divide a
    #: topic among several queries.
    assign: Annotated[
        dict[str, tuple[int, ...]] | None, BeforeValidator(_parse_assign), AfterValidator(_check_assign)
    ] = None
    #: Where a new checkpoint begins, and each batch read. Use `latest`, offsets or a time to leave out
    #: history.
    starting_offsets: Annotated[Offsets, PlainValidator(_starts)] = "earliest"
    #: Where a partition begins that has no record since the time in `starting_offsets`: at its end. Use
    #: `error` to fail there, when each partition must have newer records.
    starting_offsets_by_timestamp_strategy: Literal["latest", "error"] = "latest"
    #: Where a batch read ends, exclusive; a stream has no end. Set it to read the same range again.
    ending_offsets: Annotated[Offsets, PlainValidator(_ends)] = "latest"
    #: Whether a query ends when Kafka lost records that it has not read. Set it to false to continue after
    #: them; `lost_offsets` lists them.
    fail_on_data_loss: bool = True
    #: Whether a stream waits for a topic that does not exist yet; else its start is refused. Set it when the
    #: producer creates the topic later.
    wait_for_topic: bool = False
    #: Maximum number of records of a micro-batch. Set it when a backlog would make a batch that is too large.
    max_offsets_per_trigger: Positive | None = None
    #: Minimum number of records of a micro-batch. Set it for fewer and larger files. A batch waits for them,
    #: but not longer than `max_trigger_delay` (Spark: 15 minutes).
    min_offsets_per_trigger: Positive | None = None
    #: How long a micro-batch waits for `min_offsets_per_trigger`. Set it when rows may be less late.
    max_trigger_delay: Annotated[str, AfterValidator(_check_delay)] | None = None
    #: Minimum number of Spark tasks that read the topic. Set it when the cluster has more cores than the
    #: topic has partitions.
    min_partitions: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_topics(cls, given: Any) -> Any:  # noqa: ANN401 (pydantic's own)
        """Take `topic` from `assign` or `topic_pattern`, unless it is set."""
        if isinstance(given, dict) and not given.get("topic"):
            if given.get("assign"):
                return given | {"topic": ",".join(_assigned(given["assign"]))}
            if given.get("topic_pattern"):
                return given | {"topic": str(given["topic_pattern"])}
        return given

    @model_validator(mode="after")
    def _check_limits(self) -> SourceSettings:
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"min_offsets_per_trigger ({least}) must not be more than max_offsets_per_trigger ({most})"
            )
        if self.max_trigger_delay is not None and least is None:
            raise ValueError("max_trigger_delay needs min_offsets_per_trigger, which it limits")
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are listed; none with a pattern."""
        return () if self.topic_pattern else tuple(listed(self.topic))

    def reads(self, topic: str) -> bool:
        """Return whether it reads a topic."""
        if self.topic_pattern:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return topic in self.topics

    @property
    def has_several_topics(self) -> bool:
        """Whether it may read more than one topic."""
        return self.topic_pattern is not None or len(self.topics) > 1


def _assigned(assign: Any) -> list[str]:  # noqa: ANN401
    """Return the topics of `assign`; a placeholder if it is wrong, so that the error is about `assign`."""
    try:
        return sorted(map(str, json.loads(assign) if isinstance(assign, str) else assign)) or ["?"]
    except (TypeError, json.JSONDecodeError):
        return ["?"]


def moment(text: str) -> datetime | None:
    """Return a time in ISO 8601 with its zone, or None if the text is not one."""
    try:
        # Before Python 3.11 fromisoformat knows no Z.
        parsed = datetime.fromisoformat(text.strip().replace("Z", "+00:00").replace("z", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None
