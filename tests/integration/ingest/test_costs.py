"""The costs of a start and of a micro-batch, counted without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection
from py4j.protocol import MEMORY_COMMAND_NAME

import topiclake as tl
from tests.services.fault_proxy import FaultProxy
from tests.support.numbers_topic import Numbers, right

#: The most calls to the JVM of a start that finds its table and its checkpoint, and of the batch after it.
START_CALLS, BATCH_CALLS = 500, 500
#: The most jobs of Spark, likewise, with those of its threads.
START_JOBS, BATCH_JOBS = 4, 3


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the JVM, as they are made."""
    made: list[str] = []
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str, *given: Any) -> Any:
        # Python's garbage is collected at any time.
        if not command.startswith(MEMORY_COMMAND_NAME):
            made.append(command)
        return send(connection, command, *given)

    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    return made


def test_a_start_and_a_batch_stay_below_their_calls_and_jobs(connected, embedded, tmp_path, calls) -> None:
    numbers, context = Numbers(connected, tmp_path), connected.sparkContext
    numbers.topic("a")
    schema_id, settings = numbers.register("a"), numbers.settings()
    numbers.send("a", *(right(schema_id, n) for n in range(10)))
    numbers.ingested(settings)
    numbers.send("a", *(right(schema_id, n) for n in range(10, 20)))
    with FaultProxy(embedded[1].schema_registry_url) as proxy:
        registry = settings.schema_registry.model_copy(update={"url": proxy.url})
        settings = settings.model_copy(update={"schema_registry": registry})
        context.setJobGroup("start", "")
        calls.clear()
        query = tl.start_ingest(connected, settings)
        of_start = len(calls)
        tl.await_caught_up(query, settings.pipeline.trigger)
        # The list of the subject's versions, and the schema of the one version.
        assert len(proxy.requests) == 2
    context._jsc.clearJobGroup()
    assert connected.read.format("delta").load(f"{tmp_path}/table").count() == 20
    assert of_start <= START_CALLS
    assert len(calls) - of_start <= BATCH_CALLS
    jobs = context.statusTracker()
    assert len(jobs.getJobIdsForGroup("start")) <= START_JOBS
    assert 0 < len(jobs.getJobIdsForGroup(query.runId)) <= BATCH_JOBS
