"""docs/your-topic.md is true: its commands carry a user's topic into a table, as they are written."""

from __future__ import annotations

import json

import pytest

from tests.support.orders_topic import TOPIC, UserProject, page_commands, send_by_confluent_kafka


@pytest.mark.thorough("init, plan and the notebook ingest have tests in make test")
@pytest.mark.slow("five notebooks")
def test_the_commands_of_the_page_carry_a_topic_into_a_table(embedded, warm_jvm, tmp_path, monkeypatch):
    for name, value in embedded[1].environment().items():
        monkeypatch.setenv(name, value)
    send_by_confluent_kafka(TOPIC)
    project = UserProject(tmp_path, embedded[1].environment() | warm_jvm.environment())
    run = project.run
    init, plan, ingest, audit, quarantine, show = map(run, page_commands(TOPIC, "your-topic.md"))
    codes = [done.returncode for done in (init, plan, ingest, audit, quarantine, show)]
    assert codes == [0, 2, 0, 0, 0, 0], "\n".join(done.stderr for done in (init, plan, ingest, audit, show))
    assert f"{TOPIC}: 25 records in 3 partitions" in init.stderr
    assert "ok: 20" in plan.stdout
    assert "20 in this run" in ingest.stdout
    assert "each of the 25 records that Kafka holds is in exactly one place" in ingest.stdout
    assert "each of the 25 records that Kafka holds is in exactly one place" in audit.stdout
    assert "unknown_schema_id" in quarantine.stdout
    assert "5 rows; the table has 20 records" in show.stdout
    assert (tmp_path / "lake" / "orders" / "_delta_log").is_dir()
    # The second run has nothing to do, by the short form, too.
    assert run("topiclake plan orders").returncode == 0
    again = run(f"topiclake ingest orders --topic {TOPIC} --into ./lake --json")
    assert json.loads(again.stdout)["rows_written"] == 0
    grouped = run("topiclake show orders --sql SELECT/**/count(note)/**/AS/**/notes/**/FROM/**/orders --json")
    assert json.loads(grouped.stdout)["rows"] == [{"notes": 10}]
    # A package of the user's own, as `new` writes it, transforms the rows of another table.
    assert run("topiclake new my_orders --pipeline orders").returncode == 0
    lake = (tmp_path / "lake").as_uri()
    paths = f"-p table_path={lake}/my_orders -p checkpoint_path={lake}/_checkpoints/my_orders"
    transformed = run(f"topiclake run notebooks/my_orders_ingest.py {paths}")
    assert transformed.returncode == 0, transformed.stderr
    shown = run(f"topiclake show orders --json --limit 1 -p table_path={lake}/my_orders")
    assert json.loads(shown.stdout)["rows"][0]["source"] == "orders"
