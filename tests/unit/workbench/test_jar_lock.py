"""The artifacts of jars/*/pom.xml are the files of jars/sha256sums: one lock for Maven and for Ivy."""

from __future__ import annotations

from pathlib import Path

from workbench.host.jar_lock import Artifact, read_artifacts, read_sums, wrong_jars

JARS = Path(__file__).parents[3] / "jars"
REGISTRY = "schema-registry/target/registry/"


def test_each_artifact_has_a_sum_and_each_sum_an_artifact() -> None:
    artifacts, sums = read_artifacts(JARS), read_sums(JARS)
    jars = [
        f"{artifact.module}/target/jars/{artifact.file}" for artifact in artifacts if artifact.type == "jar"
    ]
    assert len(jars) > 90
    assert sorted(jars) == sorted(path for path in sums if not path.startswith(REGISTRY))
    # The archive's own jars have sums, too.
    assert [artifact for artifact in artifacts if artifact.type != "jar"] == [
        Artifact(
            "schema-registry", "io.apicurio", "apicurio-registry-app", artifacts[-1].version, "all", "tar.gz"
        )
    ]
    assert sum(path.startswith(REGISTRY) for path in sums) > 300


def test_an_artifact_has_the_version_of_its_property() -> None:
    files = {(artifact.module, artifact.group, artifact.file) for artifact in read_artifacts(JARS)}
    assert ("spark", "org.apache.spark", "spark-avro_2.13-4.1.1.jar") in files
    assert ("spark", "org.apache.kafka", "kafka-clients-3.9.1.jar") in files
    assert ("kafka", "org.apache.kafka", "kafka-clients-4.1.0.jar") in files


def test_what_only_our_classes_are_compiled_with_is_not_fetched() -> None:
    assert not {artifact.module for artifact in read_artifacts(JARS)} & {"console", "store", "values"}


def test_a_jar_of_another_sum_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"content")
    (tmp_path / "b.jar").write_bytes(b"content")
    right = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    sums = {"a.jar": right, "b.jar": "00" * 32, "c.jar": right}
    assert wrong_jars(tmp_path, sums) == ["b.jar", "c.jar"]
