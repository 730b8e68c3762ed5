"""Kill -9 of the whole process group, again and again, on one topic, one checkpoint and one table."""

from __future__ import annotations

import random

import pytest

from tests.programs.crash_run import Ingest
from tests.programs.crash_traffic import Traffic, audit_faults, committed, settings_for, wrong
from topiclake.delta import table as delta

RECORDS_A_KILL = 1_300
SEED = 20261121


@pytest.mark.timeout(1800)
@pytest.mark.slow("each kill ends a cold driver")
@pytest.mark.parametrize(
    ("moments", "is_transformed"),
    [
        pytest.param(["after table"], False, id="once"),
        pytest.param(
            ["after late", "before Spark's commit file", "random"],
            True,
            id="further",
            marks=pytest.mark.thorough("three kills in place of one, with a transform"),
        ),
    ],
)
def test_each_record_is_in_one_place_whatever_is_killed_when(
    embedded, spark, tmp_path, moments, is_transformed
):
    _, addresses = embedded
    servers, registry = addresses.kafka_bootstrap_servers, addresses.schema_registry_url
    # A kill needs a batch that is cut, and another one.
    settings = settings_for(servers, registry, f"crashes-{len(moments)}", tmp_path, batch=RECORDS_A_KILL)
    traffic, ingest = Traffic(settings), Ingest(tmp_path, settings, is_transformed)
    # In any order: a batch that was cut at one step is repeated, and cut again at the next.
    chance, records = random.Random(SEED), RECORDS_A_KILL * (len(moments) + 1)
    for moment in chance.sample(moments, len(moments)):
        traffic.send(RECORDS_A_KILL)
        if moment == "random":
            moment = ingest.kill_at_random(chance)
        else:
            ingest.stop_at(moment)
        assert audit_faults(spark, settings, tmp_path) == [], f"after a kill at: {moment}"
    traffic.send(RECORDS_A_KILL)
    ingest.drain_in(spark)

    # What one kill left wrong would still be wrong here.
    assert wrong(spark, tmp_path, records) == []
    assert audit_faults(spark, settings, tmp_path) == []
    assert sum(committed(tmp_path).values()) == records
    if is_transformed:
        rows = delta.read(spark, str(tmp_path / "table"))
        assert rows.where("NOT (doubled <=> 2 * number)").isEmpty()
