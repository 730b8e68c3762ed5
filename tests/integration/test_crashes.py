"""Kill -9 of the whole process group, again and again, on one topic, one checkpoint and one table."""

from __future__ import annotations

import random

import pytest

from tests.integration.crash_run import DIFFERENT_STEPS, Ingest
from tests.integration.crash_traffic import Traffic, committed, settings_for, told_by_audit, wrong

RECORDS = 9_000
SEED = 20261121
RANDOM_KILLS = 1


@pytest.mark.timeout(600)
def test_each_record_is_in_one_place_whatever_is_killed_when(embedded, spark, tmp_path):
    _, addresses = embedded
    servers, registry = addresses.kafka_bootstrap_servers, addresses.schema_registry_url
    settings = settings_for(servers, registry, "crashes", tmp_path, batch=600)
    traffic, ingest = Traffic(settings), Ingest(settings, tmp_path)
    # In any order: a batch that was cut at one step is repeated, and cut again at the next.
    moments = [*DIFFERENT_STEPS, *["random"] * RANDOM_KILLS]
    chance = random.Random(SEED)
    chance.shuffle(moments)

    for moment in moments:
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
