"""The state that a start finds, while another driver writes."""

import json

import pytest

from tests.support.lake_settings import lake_settings
from topiclake.delta import table as delta
from topiclake.errors import StorageError
from topiclake.ingest import start_state, targets
from topiclake.streaming import checkpoint

QUERY = "11111111-aaaa"


@pytest.fixture
def settings(tmp_path):
    """A configuration with the files of a checkpoint of one batch."""
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    commit(tmp_path, 0)
    return lake_settings(tmp_path, "shop")


def commit(folder, batch_id):
    """Write Spark's files of a committed batch."""
    for name, text in (("offsets", '\n{}\n{"shop": {"0": 7}}'), ("commits", "\n{}")):
        (folder / "c" / name).mkdir(exist_ok=True)
        (folder / "c" / name / str(batch_id)).write_text(f"v1{text}")


def append(spark, settings, batch_id):
    rows = spark.range(1).selectExpr("id", "named_struct('partition', 0, 'offset', id) AS _kafka")
    delta.append_once(rows, targets.target(settings).table, writer=QUERY, batch_id=batch_id, commit={})


def test_the_commits_have_each_batch_of_the_progress(spark, settings, tmp_path, monkeypatch):
    append(spark, settings, 0)
    read = checkpoint.progress

    def and_a_batch_of_another_driver(spark, path):
        append(spark, settings, 1)
        commit(tmp_path, 1)
        return read(spark, path)

    monkeypatch.setattr(checkpoint, "progress", and_a_batch_of_another_driver)
    state = start_state.read(spark, settings, targets.target(settings))
    assert (state.progress.committed, state.progress.position) == (1, {"shop": {0: 7}})
    assert state.commits.newest_of(QUERY).metadata["batch_id"] == 1
    assert state.snapshot.columns.names == ["id", "_kafka"]


def test_a_table_that_is_gone_has_no_commits(spark, settings):
    state = start_state.read(spark, settings, targets.target(settings))
    assert (state.progress.committed, state.snapshot, state.commits) == (0, None, None)


def test_a_table_that_forgets_its_batches_is_refused(spark, settings):
    target = targets.target(settings)
    append(spark, settings, 0)
    delta.set_properties(spark, target.table, {delta.FORGETS_WRITERS: "interval 7 days"})
    with pytest.raises(StorageError) as raised:
        start_state.read(spark, settings, target)
    assert raised.value.fields["property"] == delta.FORGETS_WRITERS
