"""Kill -9 of the whole process group, again and again, on one topic, one checkpoint and one table."""

from __future__ import annotations

import random

import pytest

from tests.integration.crash_run import DIFFERENT_STEPS, Ingest
from tests.integration.crash_traffic import Traffic, committed, settings_for, told_by_audit, wrong

RECORDS = 9_000
SEED = 20261121


@pytest.mark.timeout(600)
@pytest.mark.slow("each kill and each start is a cold driver")
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(["after table", "random"], id="twice"),
        pytest.param(
            [*DIFFERENT_STEPS, "random"],
            id="at every step",
            marks=pytest.mark.thorough("six kills in place of two"),
        ),
    ],
)
def test_each_record_is_in_one_place_whatever_is_killed_when(embedded, spark, tmp_path, moments):
    _, addresses = embedded
    servers, registry = addresses.kafka_bootstrap_servers, addresses.schema_registry_url
    settings = settings_for(servers, registry, f"crashes-{len(moments)}", tmp_path, batch=600)
    traffic, ingest = Traffic(settings), Ingest(settings, tmp_path)
    # In any order: a batch that was cut at one step is repeated, and cut again at the next.
    chance = random.Random(SEED)
    for moment in chance.sample(moments, len(moments)):
        traffic.send(RECORDS // (len(moments) + 1))
        if moment == "random":
            moment = f"random, after {ingest.kill_at_random(chance):.2f} s"
        else:
            ingest.stop_at(moment)
        assert told_by_audit(spark, settings, tmp_path) == [], f"after a kill at: {moment}"
    traffic.send(RECORDS - traffic.sent)
    ingest.drain()

    # What one kill left wrong would still be wrong here.
    assert wrong(spark, tmp_path, RECORDS) == []
    assert told_by_audit(spark, settings, tmp_path) == []
    assert sum(committed(tmp_path).values()) == RECORDS
