"""OpenLineage: for each micro-batch and topic an event with the offsets and the table versions they became.

OpenLineage's own client (https://openlineage.io/docs/client/python) sends the events. Its settings from
`openlineage.yml` and the environment, such as tags, apply too.
"""

from __future__ import annotations

import fcntl
import logging
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4, uuid5

import attr
import requests
from openlineage.client import OpenLineageClient, event_v2
from openlineage.client.generated import parent_run
from openlineage.client.generated.base import DatasetFacet, OutputDatasetFacet, RunFacet
from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
from openlineage.client.generated.job_type_job import JobTypeJobFacet
from openlineage.client.generated.nominal_time_run import NominalTimeRunFacet
from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
from openlineage.client.generated.parent_run import ParentRunFacet
from openlineage.client.generated.processing_engine_run import ProcessingEngineRunFacet
from openlineage.client.generated.storage_dataset import StorageDatasetFacet
from openlineage.client.generated.symlinks_dataset import Identifier, SymlinksDatasetFacet
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import (
    ApiKeyTokenProvider,
    HttpConfig,
    HttpSslContextConfig,
    HttpTransport,
    TokenProvider,
)

from topiclake.config import table_name
from topiclake.config.lineage import LineageSettings
from topiclake.config.settings import Settings
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.streaming import batch_counts, checkpoint
from topiclake.streaming.batch_counts import TableCount
from topiclake.streaming.batch_hooks import Backoff, CommittedBatch
from topiclake.streaming.checkpoint import Offsets

PRODUCER = "urn:topiclake"
_BY: dict[str, Any] = {"producer": PRODUCER}
#: Most events that wait for an unavailable server; older ones are lost.
MAX_WAITING = 1_000
#: Time that a batch may send events. After an outage of the server, several batches send those that wait.
SEND_SECONDS = 5.0
_RETRY = {
    "total": 2,
    "backoff_factor": 0.3,
    "status_forcelist": [502, 503, 504],
    "allowed_methods": ["POST"],
}
#: The same event will be refused again.
_REFUSED = (400, 405, 413, 415, 422)
_log = logging.getLogger(__name__)


@attr.define
class OffsetsDatasetFacet(DatasetFacet):
    """The offsets of a topic in a batch: `first` is its first offset, `after` the one after its last."""

    partitions: list[dict[str, int]]

    @staticmethod
    def _get_schema() -> str:
        return "urn:topiclake:facet:offsets:1"


@attr.define
class SchemasDatasetFacet(DatasetFacet):
    """Ids (or GUIDs) of the registry's schemas that a batch was decoded with, of values and of keys."""

    value: list[int | str]
    key: list[int | str]

    @staticmethod
    def _get_schema() -> str:
        return "urn:topiclake:facet:schemas:1"


@attr.define
class QuarantineDatasetFacet(DatasetFacet):
    """The number of a batch's records in the quarantine, by reason."""

    reasons: dict[str, int]

    @staticmethod
    def _get_schema() -> str:
        return "urn:topiclake:facet:quarantine:1"


@attr.define
class BatchRunFacet(RunFacet):
    """The micro-batch of a run: its number, in the query whose checkpoint has this id."""

    queryId: str  # noqa: N815 - as OpenLineage writes names
    batchId: int  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return "urn:topiclake:facet:batch:1"


@dataclass(frozen=True)
class Lineage:
    """Commit hook that sends events of each batch; can be pickled, for Spark Connect.

    Attributes:
        settings: The server or the file, without the secret, which is `api_key`.
        pipeline: The pipeline's name.
        broker: The first address of Kafka's bootstrap servers.
        topic: The query's topic, if it has one.
        api_key: The server's API key.
        start: The id of one start of the query.
    """

    settings: LineageSettings
    pipeline: str
    broker: str
    topic: str
    api_key: str | None = field(default=None, repr=False)
    start: str = field(default_factory=lambda: uuid4().hex)

    @property
    def action(self) -> str:
        """The hook's work, for the log."""
        return f"sending its lineage to {self.settings.file or self.settings.url}"

    def begin(self) -> None:
        """Start to count the commits."""
        _sender(self)

    def __call__(self, batch: CommittedBatch) -> None:
        """Send the events of a batch, and those that wait."""
        sender = _sender(self)
        if not sender.counts.is_empty:
            query_id = checkpoint.query_id(batch.spark, batch.checkpoint, self.start)
            for number, counts in sender.counts.pop(query_id, batch.number).items():
                numbered = batch if number == batch.number else replace(batch, number=number)
                for topic in sorted({count.topic or self.topic for count in counts}):
                    topic_counts = [count for count in counts if (count.topic or self.topic) == topic]
                    sender.waiting.append(self._event(numbered, query_id, topic, topic_counts))
        sender.send()

    def close(self) -> None:
        """Forget this start; events that still wait are sent, or lost."""
        sender = _senders.pop(self.start, None)
        if sender is not None:
            sender.close()

    def _event(
        self, batch: CommittedBatch, query_id: str, topic: str, counts: Sequence[TableCount]
    ) -> event_v2.RunEvent:
        facets: dict[str, RunFacet] = {
            "topiclake_batch": BatchRunFacet(queryId=query_id, batchId=batch.number, **_BY),
            "nominalTime": NominalTimeRunFacet(_time(batch.began), _time(batch.ended), **_BY),
            "parent": ParentRunFacet(
                run=parent_run.Run(runId=query_id),
                job=parent_run.Job(self.settings.namespace, self.pipeline),
                **_BY,
            ),
            "processing_engine": ProcessingEngineRunFacet(version=batch.spark.version, name="spark", **_BY),
        }
        kind = JobTypeJobFacet("STREAMING", "TOPICLAKE", "MICRO_BATCH", **_BY)
        return event_v2.RunEvent(
            eventTime=_time(batch.ended),
            producer=PRODUCER,
            eventType=event_v2.RunState.COMPLETE,
            # A batch that is written again after a crash has the same id, by which servers recognize it.
            run=event_v2.Run(str(uuid5(UUID(query_id), f"{batch.number}/{topic}")), facets),
            job=event_v2.Job(self.settings.namespace, f"{self.pipeline}.{topic}", {"jobType": kind}),
            inputs=[self._input(batch, topic, counts)],
            outputs=outputs(batch, counts),
        )

    def _input(
        self, batch: CommittedBatch, topic: str, counts: Sequence[TableCount]
    ) -> event_v2.InputDataset:
        facets: dict[str, DatasetFacet] = {}
        # The checkpoint may no longer have the offsets of batches that a paused topic has missed.
        if batch.end and batch.first is not None:
            facets["topiclake_offsets"] = OffsetsDatasetFacet(ranges(batch.first, batch.end, topic), **_BY)
        values, keys = _schemas(counts, "value"), _schemas(counts, "key")
        if values or keys:
            facets["topiclake_schemas"] = SchemasDatasetFacet(values, keys, **_BY)
        return event_v2.InputDataset(f"kafka://{self.broker}", topic, facets=facets)


def prepared(settings: Settings, lineage: LineageSettings) -> Lineage:
    """Return the commit hook that sends a pipeline's lineage.

    Raises:
        StorageError: The file cannot be written.
        ConfigError: The API key cannot be read.
    """
    if lineage.file is not None:
        try:
            lineage.file.parent.mkdir(parents=True, exist_ok=True)
            lineage.file.open("ab").close()
        except OSError as error:
            raise StorageError(
                f"lineage.file {lineage.file} cannot be written: {error.strerror}",
                "set another lineage.file",
                key="lineage.file",
                file=str(lineage.file),
            ) from None
    api_key = lineage.api_key.reveal().strip() if lineage.api_key else None
    broker = settings.kafka.bootstrap_servers.split(",")[0].strip()
    without_secret = lineage.model_copy(update={"api_key": None})
    return Lineage(without_secret, settings.name, broker, settings.pipeline.topic, api_key)


def ranges(begin: Offsets, end: Offsets, topic: str) -> list[dict[str, int]]:
    """Return a batch's offsets of a topic, by partition, without partitions that have no new records."""
    first = begin.get(topic, {})
    spans = [
        {"partition": partition, "first": first.get(partition, 0), "after": after}
        for partition, after in sorted(end.get(topic, {}).items())
    ]
    return [span for span in spans if span["first"] < span["after"]]


def outputs(batch: CommittedBatch, counts: Sequence[TableCount]) -> list[event_v2.OutputDataset]:
    """Return the tables of a batch's commits, each with the newest version that these commits made."""
    datasets = []
    for path in sorted({count.path for count in counts if count.writer}):
        path_counts = [count for count in counts if count.path == path]
        committed = [
            delta.version_of(batch.spark, path, writer=count.writer, batch_id=batch.number)
            for count in path_counts
            if count.writer
        ]
        versions = [version for version in committed if version is not None]
        namespace, name = dataset(path_counts[0].folder or path)
        facets: dict[str, DatasetFacet] = {"storage": StorageDatasetFacet("delta", "parquet", **_BY)}
        if table_name.is_name(path):
            named = Identifier(namespace, table_name.unquoted(path), "TABLE")
            facets["symlinks"] = SymlinksDatasetFacet([named], **_BY)
        if versions:
            facets["version"] = DatasetVersionDatasetFacet(str(max(versions)), **_BY)
        if reasons := {
            name: number for count in path_counts for name, number in (count.reasons or {}).items()
        }:
            facets["topiclake_quarantine"] = QuarantineDatasetFacet(reasons, **_BY)
        rows = sum(count.rows for count in path_counts)
        output_facets: dict[str, OutputDatasetFacet] = {
            "outputStatistics": OutputStatisticsOutputDatasetFacet(rows, **_BY)
        }
        datasets.append(event_v2.OutputDataset(namespace, name, facets=facets, outputFacets=output_facets))
    return datasets


def dataset(path: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name of a table's path.

    Source: https://openlineage.io/docs/spec/naming: a store's name is the namespace, and S3's scheme is s3.
    The name in a catalog is a symlink of this dataset, as with OpenLineage's own plug-in of Spark.
    """
    scheme, _, location = path.partition(":")
    if not re.fullmatch(r"[A-Za-z][\w+.-]+", scheme) or not location:
        return "file", path
    parts = urlsplit(path)
    if scheme == "file":
        return "file", unquote(parts.path)
    if not parts.netloc:
        return scheme, parts.path
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{parts.netloc}", parts.path.strip("/")


def _schemas(counts: Sequence[TableCount], part: Literal["value", "key"]) -> list[int | str]:
    return list(dict.fromkeys(key for count in counts for key in count.schemas.get(part, ())))


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat()


class _Sender:
    """Sends events in their order, and keeps those that a server does not accept yet."""

    def __init__(self, settings: LineageSettings, api_key: str | None) -> None:
        self.counts = batch_counts.CountSubscription()
        self.waiting: deque[event_v2.RunEvent] = deque(maxlen=MAX_WAITING)
        self._file, self._client = settings.file, OpenLineageClient(transport=_transport(settings, api_key))
        self._pause = Backoff()

    def send(self) -> None:
        """Send the events that wait, for some seconds at most; the next batch sends the rest.

        Raises:
            OSError: The file or the server cannot be used; for a while it is not tried again.
        """
        if self.waiting:
            self._pause.check()
        self._send_all()

    def close(self) -> None:
        """Send the events that wait, and log the number of those that are lost."""
        self.counts.close()
        try:
            self._send_all()
            problem = "the query has ended before"
        except OSError as error:
            problem = str(error)
        if self.waiting:
            _log.warning("%d events of lineage were not sent: %s", len(self.waiting), problem)

    def _send_all(self) -> None:
        deadline = time.monotonic() + SEND_SECONDS
        while self.waiting and time.monotonic() < deadline:
            try:
                self._emit(self.waiting[0])
            except requests.HTTPError as error:
                status = error.response.status_code
                if status not in _REFUSED:
                    raise self._postpone(f"the server answers {status}") from None
                event = self.waiting[0]
                _log.warning("the server refuses (%s) the lineage of run %s", status, event.run.runId)
            except Exception as error:  # noqa: BLE001 - of requests, of the file, of OpenLineage
                raise self._postpone(str(error)) from None
            self.waiting.popleft()
        self._pause.end()

    def _postpone(self, cause: str) -> OSError:
        problem = OSError(cause)
        self._pause.begin(problem)
        return problem

    def _emit(self, event: event_v2.RunEvent) -> None:
        if self._file is None:
            self._client.emit(event)
            return
        # One event a line, even if other processes write there, or a full disk has cut off the last line.
        with Path(f"{self._file}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _end_line(self._file)
            self._client.emit(event)


def _end_line(file: Path) -> None:
    with file.open("ab+") as written:
        if written.tell():
            written.seek(-1, 2)
            if written.read(1) != b"\n":
                written.write(b"\n")


def _transport(settings: LineageSettings, api_key: str | None) -> Any:  # noqa: ANN401 - has no common type that is exported
    if settings.file is not None:
        return FileTransport(FileConfig(log_file_path=str(settings.file), append=True))
    return HttpTransport(
        HttpConfig(
            url=str(settings.url),
            endpoint=settings.endpoint,
            auth=ApiKeyTokenProvider({"api_key": api_key}) if api_key else TokenProvider({}),
            retry=_RETRY,
            ssl_context=HttpSslContextConfig(ca_cert_path=str(settings.ca_file))
            if settings.ca_file
            else None,
        )
    )


#: By start of a query, in the process that runs its micro-batches.
_senders: dict[str, _Sender] = {}


def _sender(lineage: Lineage) -> _Sender:
    if lineage.start not in _senders:
        _senders[lineage.start] = _Sender(lineage.settings, lineage.api_key)
    return _senders[lineage.start]
