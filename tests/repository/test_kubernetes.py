"""deploy/kubernetes, checked without Kubernetes: every field against the CRDs, secrets, settings, paths."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from topiclake.config.load import load_settings
from topiclake.session import JAR_MODULES, spark_conf
from workbench.dbutils import DBUtils
from workbench.notebook.files import read_notebook
from workbench.notebook.parameters import widget_names

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
MANIFESTS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}
APPLICATIONS = {name: one for name, one in MANIFESTS.items() if one["kind"] == "SparkApplication"}
#: What a value must not be given for, only a reference to a Secret.
SECRET_NAME = re.compile(r"secret|password|token|key|username", re.IGNORECASE)
#: An argument or an option of a JVM with such a name; a reference may stand there.
SECRET_OPTION = re.compile(
    rf"(?:--[\w.-]*(?:{SECRET_NAME.pattern})[\w.-]* |(?:{SECRET_NAME.pattern})[\w.-]*\s*[=:]\s*)"
    r"(?!\{\{secrets/)\S",
    re.IGNORECASE,
)
#: A signature, a login, AWS' key and secret, Azure's key, a token, a private key.
SECRET_LOOK = re.compile(
    r"\bsig=|://[^/@\s]*:[^@\s]+@|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\beyJ[\w-]+\.eyJ|PRIVATE KEY"
    r"|(?<![\w/+])(?=\S*\d)(?=\S*[a-z])(?=\S*[A-Z])(?:[\w/+]{40}|[A-Za-z0-9/+]{86}==)(?![\w/+=])"
)
REFERENCE = "a reference"
REFERENCES = dict.fromkeys(("valueFrom", "secrets", "imagePullSecrets"), REFERENCE)

Manifest = dict[str, Any]


def violations(manifest: Manifest) -> list[str]:
    """What the schema of the manifest's own kind, reduced from its CRD, says against it."""
    schema = json.loads(
        (ROOT / "tests" / "repository" / "data" / f"{manifest['kind']}.json").read_text("utf-8")
    )
    errors = Draft202012Validator(schema).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in errors]


def secrets_in_clear(manifest: Manifest) -> list[str]:
    """Names of what has the name or the look of a secret, and a value; of a list the list's."""
    return [
        name
        for name, text in strings(manifest)
        if SECRET_NAME.search(name) or SECRET_OPTION.search(text) or SECRET_LOOK.search(text)
    ]


def strings(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a manifest with its name; those of a reference to a Secret are named so."""
    if isinstance(value, dict) and "value" in value:
        yield value["name"], str(value["value"])
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(inner, REFERENCE if REFERENCE in (name, REFERENCES.get(key)) else key)
    elif isinstance(value, list) and all(isinstance(one, str) for one in value):
        # An option and its value may be two of them.
        yield name, " ".join(value)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, name)
    elif not isinstance(value, bool):
        yield name, str(value)


def not_in_the_image(manifest: Manifest) -> list[str]:
    """Paths of the image that no Dockerfile fills."""
    dockerfiles = [FOLDER / "Dockerfile", ROOT / "deploy" / "spark" / "Dockerfile"]
    texts = [dockerfile.read_text("utf-8") for dockerfile in dockerfiles]
    filled = [folder for text in texts for folder in re.findall(r"^COPY .* (/topiclake/\S+)$", text, re.M)]
    named = re.findall(r'(?:local://|[":])(/topiclake/[\w./-]+)', json.dumps(manifest["spec"]))
    assert named
    return sorted({path for path in named if not path.startswith(tuple(filled))})


def test_the_image_has_each_module_of_jars_that_spark_needs_and_drivers_and_executors_load_it() -> None:
    dockerfile = (ROOT / "deploy" / "spark" / "Dockerfile").read_text("utf-8")
    (built,) = re.findall(r" -pl (\S+) process-resources", dockerfile)
    assert sorted(built.split(",")) == sorted(JAR_MODULES)
    for application in APPLICATIONS.values():
        for process in ("driver", "executor"):
            path = application["spec"]["sparkConf"][f"spark.{process}.extraClassPath"]
            assert sorted(re.findall(r"/topiclake/jars/([\w-]+)/", path)) == sorted(JAR_MODULES)


def test_the_manifests_of_the_issue_are_there() -> None:
    assert set(MANIFESTS) == {"taxi-publish", "taxi-archive", "nyc-avro-topic"}
    assert {one["spec"]["executor"]["instances"] for one in APPLICATIONS.values()} == {10}
    assert MANIFESTS["nyc-avro-topic"]["spec"]["partitions"] == 10


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_field_of_a_manifest_is_one_of_its_crd(name: str) -> None:
    assert violations(MANIFESTS[name]) == []


@pytest.mark.parametrize(
    ("name", "place", "value", "named"),
    [
        ("taxi-archive", "spec.driver.envs", [], "'envs' was unexpected"),
        ("taxi-archive", "spec.executor.instances", "10", "'10' is not of type 'integer'"),
        ("taxi-archive", "spec.executor.env.0.valueFrom.secretRef", {}, "'secretRef' was unexpected"),
        ("taxi-archive", "spec.executor.securityContext.capabilities.drop", "ALL", "not of type 'array'"),
        ("taxi-archive", "spec.type", "python", "'python' is not one of"),
        ("taxi-archive", "spec.sparkVersion", None, "'sparkVersion' is a required property"),
        (
            "taxi-archive",
            "spec.sparkConf",
            {"spark.sql.shuffle.partitions": 10},
            "10 is not of type 'string'",
        ),
        ("taxi-archive", "spec.restartPolicy.onFailureRetries", -1, "-1 is less than the minimum"),
        (
            "taxi-archive",
            "apiVersion",
            "sparkoperator.k8s.io/v1",
            "'sparkoperator.k8s.io/v1beta2' was expected",
        ),
        ("taxi-archive", "metadata.label", {}, "'label' was unexpected"),
        ("nyc-avro-topic", "spec.partition", 10, "'partition' was unexpected"),
        ("nyc-avro-topic", "spec.partitions", 0, "0 is less than the minimum"),
        ("nyc-avro-topic", "apiVersion", "kafka.strimzi.io/v1beta2", "'kafka.strimzi.io/v1' was expected"),
    ],
)
def test_a_field_that_is_wrong_is_named(name: str, place: str, value: object, named: str) -> None:
    (violation,) = violations(changed(MANIFESTS[name], place, value))
    assert named in violation


@pytest.mark.parametrize("name", MANIFESTS)
def test_no_manifest_holds_a_secret(name: str) -> None:
    assert secrets_in_clear(MANIFESTS[name]) == []


@pytest.mark.parametrize("place", ["spec.driver.env.3", "spec.executor.env.1"])
def test_a_secret_in_clear_is_named(place: str) -> None:
    manifest = APPLICATIONS["taxi-archive"]
    name = valued(manifest, place)["name"]
    assert secrets_in_clear(changed(manifest, place, {"name": name, "value": "x"})) == [name]


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("spec.arguments", ["notebook.py", "-p", "sas_token=abc"], "arguments"),
        ("spec.arguments", ["notebook.py", "--password", "abc"], "arguments"),
        ("spec.driver.javaOptions", "-Da=b -Djavax.net.ssl.trustStorePassword=abc", "javaOptions"),
        ("spec.driver.annotations", {"example.org/password": "abc"}, "example.org/password"),
        ("metadata.annotations", {"note": "https://a.blob.core.windows.net/c?sv=1&sig=abc%3D"}, "note"),
        ("metadata.labels", {"owner": "AKIAIOSFODNN7EXAMPLE"}, "owner"),
        ("spec.driver.env.2", {"name": "LAKE", "value": "s3a://id:abc@topiclake/datalake"}, "LAKE"),
        ("spec.driver.env.2", {"name": "LAKE", "value": 'plain required password="abc";'}, "LAKE"),
        ("spec.sparkConf", {"spark.jars.ivy": "-----BEGIN RSA PRIVATE KEY-----"}, "spark.jars.ivy"),
        ("spec.hadoopConf", {"fs.a": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}, "fs.a"),
        ("spec.hadoopConf", {"fs.a": "q1Z" * 28 + "aB=="}, "fs.a"),
        ("spec.hadoopConf", {"fs.a": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc"}, "fs.a"),
    ],
)
def test_a_secret_in_clear_is_named_wherever_it_stands(place: str, value: object, named: str) -> None:
    assert secrets_in_clear(changed(APPLICATIONS["taxi-archive"], place, value)) == [named]


def test_the_input_of_the_producer_is_in_the_image() -> None:
    (path,) = (
        variable["value"]
        for variable in APPLICATIONS["taxi-publish"]["spec"]["driver"]["env"]
        if variable["name"] == "INPUT_PATH"
    )
    notebook = (ROOT / "notebooks" / "taxi_publish.py").read_text("utf-8")
    assert 'os.environ.get("INPUT_PATH"' in notebook
    assert (ROOT / path.removeprefix("/topiclake/")).is_file()


def test_the_name_of_a_secret_is_none() -> None:
    arguments = ["notebook.py", "-p", "sas_token={{secrets/azure/lake-sas}}"]
    assert secrets_in_clear(changed(APPLICATIONS["taxi-archive"], "spec.arguments", arguments)) == []


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_configuration_gets_its_variables_secrets_and_authority(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = APPLICATIONS[name]["spec"]
    notebook, *parameters = spec["arguments"]
    assert parameters == ["-p", "env=kubernetes"]
    assert "env" in (widget_names(read_notebook(ROOT / notebook.removeprefix("/topiclake/"))) or ())
    for one in spec["driver"]["env"]:
        monkeypatch.setenv(one["name"], one.get("value", f"secret {one['name']}"))
    read = DBUtils(tmp_path, tmp_path).secrets.get
    settings = load_settings("taxi", {"env": "kubernetes"}, secrets=read, conf=ROOT / "conf")
    assert settings.pipeline.topic == MANIFESTS["nyc-avro-topic"]["metadata"]["name"]
    logins = [settings.kafka, settings.schema_registry]
    assert all(one.username and one.username.reveal() for one in logins)
    assert all(one.password and one.password.reveal() for one in logins)
    for role in ("driver", "executor"):
        assert str(settings.kafka.ca_file) == f"{spec[role]['secrets'][0]['path']}/ca.crt"


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_drivers_jvm_is_started_as_a_session_needs_it(name: str) -> None:
    assert (
        APPLICATIONS[name]["spec"]["driver"]["javaOptions"] == spark_conf()["spark.driver.extraJavaOptions"]
    )


@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_path_of_the_image_comes_from_one_of_its_dockerfiles(name: str) -> None:
    assert not_in_the_image(APPLICATIONS[name]) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("spec.mainApplicationFile", "local:///topiclake/deploy/run_notebook.py"),
        ("spec.arguments", ["/topiclake/notebook/taxi_archive.py"]),
        ("spec.sparkConf", {"spark.driver.extraClassPath": "/topiclake/jars/avro/*:/topiclake/jar/spark/*"}),
    ],
)
def test_a_path_that_is_not_in_the_image_is_named(place: str, value: object) -> None:
    assert len(not_in_the_image(changed(APPLICATIONS["taxi-archive"], place, value))) == 1


def test_the_image_takes_only_what_its_dockerfile_copies_and_no_secrets() -> None:
    sources = re.findall(r"^COPY (\S+) /", (FOLDER / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    assert [line.removeprefix("!") for line in ignored if line.startswith("!")] == sources
    assert "*" in ignored
    assert "conf/secrets*" in ignored
    assert [source for source in sources if not (ROOT / source).exists()] == []


def valued(manifest: Any, place: str) -> Any:
    """What stands at a place such as `spec.driver.env.3`."""
    for step in place.split("."):
        manifest = manifest[int(step) if step.isdigit() else step]
    return manifest


def changed(manifest: Manifest, place: str, value: object) -> Manifest:
    """The manifest with another value at a place; None takes it out."""
    # By JSON: where the file has an alias, a deep copy has one object in both places.
    broken = json.loads(json.dumps(manifest))
    above, _, last = place.rpartition(".")
    inner = valued(broken, above) if above else broken
    key = int(last) if last.isdigit() else last
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return broken


def test_the_plan_in_the_docs_is_that_of_the_manifests_and_its_arithmetic_is_right():
    plan = (ROOT / "docs" / "scale.md").read_text("utf-8")
    conf = yaml.safe_load((ROOT / "conf" / "kubernetes.yaml").read_text("utf-8"))
    executors = APPLICATIONS["taxi-archive"]["spec"]["executor"]["instances"]
    assert executors == MANIFESTS["nyc-avro-topic"]["spec"]["partitions"]
    rows, batch_rows = 112_000_000, conf["pipelines"]["taxi"]["max_offsets_per_trigger"]
    # Of the table: the slower round with one worker, a batch's seconds and calls; below it, the skew.
    measured = re.search(
        r"^\| 1 worker \| [\d,]+ \| ([\d,]+) – [\d,]+ \| ([\d.]+) \| (\d+) \|", plan, re.MULTILINE
    )
    rate, seconds, calls = int(measured[1].replace(",", "")), float(measured[2]), int(measured[3])
    largest = round(float(re.search(r"the largest has ([\d.]+) times the mean", plan)[1]) * rows / executors)
    reading, batches = round(largest / rate), math.ceil(rows / batch_rows)
    besides = round(batches * seconds)
    needed = largest / (600 - besides)
    assert reading + besides < 600
    for phrase in (
        f"{largest:,} / {rate:,} = {reading} s",
        f"⌈112,000,000 / {batch_rows:,}⌉ = {batches}",
        f"{batches} · {seconds} = {besides} s at most",
        f"{reading} s + {besides} s = {reading + besides} s",
        f"{largest:,} / (600 − {besides}) = {needed:,.0f} rows/s, {needed / rate:.0%}".replace("%", " %"),
        f"{calls} · {batches} = {calls * batches}, {calls * batches / (rows / 1e6):.1f} for a million rows",
    ):
        assert phrase in " ".join(plan.split())
