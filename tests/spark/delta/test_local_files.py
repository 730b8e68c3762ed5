"""Delta's log and streams' checkpoints in a local folder: of two writers one is refused, and sees why."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError


@pytest.fixture
def jvm(spark):
    return spark.sparkContext._jvm


def write(jvm, spark, path, lines, overwrite=False):
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    store = jvm.io.topiclake.store.LinkedLogStore(conf)
    actions = jvm.java.util.ArrayList()
    for line in lines:
        actions.add(line)
    store.write(jvm.org.apache.hadoop.fs.Path(f"file:{path}"), actions.iterator(), overwrite, conf)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_the_second_commit_of_a_name_is_refused_and_nothing_is_left_of_it(jvm, spark, tmp_path):
    commit = tmp_path / "00000000000000000000.json"
    write(jvm, spark, commit, ["first", "one"])
    with pytest.raises(Py4JJavaError, match=r"java\.nio\.file\.FileAlreadyExistsException"):
        write(jvm, spark, commit, ["second"])
    assert commit.read_text("utf-8") == "first\none\n"
    assert names(tmp_path) == [commit.name]


@pytest.mark.parametrize(
    ("kind", "why", "is_of_file_system"),
    [
        ("FileSystemException", "Operation not permitted", True),
        ("FileSystemException", "Operation not supported", True),
        ("FileSystemException", "Invalid cross-device link", True),
        ("FileSystemException", "No space left on device", False),
        ("FileSystemException", "Read-only file system", False),
        ("NoSuchFileException", None, False),
        ("AccessDeniedException", None, False),
    ],
)
def test_only_a_file_system_without_hard_links_is_told_as_one(
    jvm, spark, tmp_path, kind, why, is_of_file_system
):
    """By reflection: such file systems, full ones and those that lose a folder need root."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    files = loader.loadClass("io.topiclake.store.files.LocalFiles")
    (link,) = [method for method in files.getDeclaredMethods() if method.getName() == "refused"]
    link.setAccessible(True)
    target = jvm.java.nio.file.Path.of(
        f"{tmp_path}/1.json", spark.sparkContext._gateway.new_array(jvm.String, 0)
    )
    thrown = getattr(jvm.java.nio.file, kind)(str(target), None, why)
    given = spark.sparkContext._gateway.new_array(jvm.Object, 2)
    given[0], given[1] = target, thrown
    error = link.invoke(None, given)
    assert ("without hard links" in error.getMessage()) == is_of_file_system
    assert ("logStore" in error.getMessage()) == is_of_file_system
    assert (why or str(target)) in error.getMessage()


def test_what_is_overwritten_loses_the_checksum_that_hadoop_made(jvm, spark, tmp_path):
    last, checksum = tmp_path / "last", tmp_path / ".last.crc"
    last.write_text("old")
    checksum.write_bytes(b"crc\0of the old one")
    write(jvm, spark, last, ["new"], overwrite=True)
    assert last.read_text("utf-8") == "new\n"
    assert names(tmp_path) == ["last"]
    assert spark.read.text(last.as_uri()).collect() == [("new",)]


def test_two_queries_on_one_checkpoint_do_not_overwrite_each_others_batches(jvm, spark, tmp_path):
    folder = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/offsets")
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    queries = [jvm.io.topiclake.store.CheckpointFiles(folder, conf) for _ in range(2)]
    queries[0].mkdirs(folder)
    batch = jvm.org.apache.hadoop.fs.Path(folder, "0")
    streams = [query.createAtomic(batch, False) for query in queries]
    for number, stream in enumerate(streams):
        stream.write(bytes([48 + number]))
    streams[1].close()
    with pytest.raises(Py4JJavaError, match=r"org\.apache\.hadoop\.fs\.FileAlreadyExistsException"):
        streams[0].close()
    assert (tmp_path / "offsets" / "0").read_bytes() == b"1"
    cancelled = queries[0].createAtomic(jvm.org.apache.hadoop.fs.Path(folder, "1"), False)
    cancelled.write(b"x")
    cancelled.cancel()
    cancelled.close()
    assert names(tmp_path / "offsets") == ["0"]
