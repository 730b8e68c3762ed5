"""The targets and the compute of the bundle: what Databricks' documentation and its command line ask for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from topiclake.session import (
    CODE_CACHE_SIZE,
    CONSUMER_CACHE_CONF,
    FILE_LIST_CACHE_SIZE,
    REDACTION_CONF,
    jvm_options,
)

PROJECT = Path(__file__).parents[3]
#: A list of packages for each runtime that the library is checked against.
RUNTIMES = {path.stem for path in (PROJECT / "tests" / "repository" / "data" / "databricks").glob("*.txt")}
BUNDLE: dict[str, Any] = yaml.safe_load((PROJECT / "databricks.yml").read_text())
CLUSTER: dict[str, Any] = BUNDLE["variables"]["cluster"]["default"]
TARGETS: dict[str, dict[str, Any]] = BUNDLE["targets"]
FILES = [yaml.safe_load(path.read_text()) for path in sorted((PROJECT / "conf" / "jobs").glob("*.yml"))]
JOBS: dict[str, dict[str, Any]] = {
    key: job for file in FILES for key, job in file["resources"]["jobs"].items()
}

#: The first package of the extra `jdbc`.
PSYCOPG = re.findall(r'^jdbc = \["([^"]+)"', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)


def test_the_cluster_has_the_settings_that_the_library_checks() -> None:
    conf = BUNDLE["variables"]["cluster"]["default"]["spark_conf"]
    options = dict.fromkeys(
        ["spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"], jvm_options()
    )
    caches = {FILE_LIST_CACHE_SIZE: "0", CODE_CACHE_SIZE: "1000"} | CONSUMER_CACHE_CONF
    assert conf == options | REDACTION_CONF | caches


def test_the_cluster_has_the_variables_of_its_environment() -> None:
    variables = CLUSTER["spark_env_vars"]
    of_conf = set(re.findall(r"\$\{(\w+)", (PROJECT / "conf" / "azure.yaml").read_text()))
    of_shop = set(re.findall(r"`(WORKBENCH_\w+)`", (PROJECT / "notebooks" / "shop_change.py").read_text()))
    assert len(of_shop) == 2
    assert of_conf | of_shop == set(variables)
    for reference in variables.values():
        assert TARGETS["azure"]["variables"][reference.removeprefix("${var.").removesuffix("}")]


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_names_environments_that_fit_its_compute(target: str) -> None:
    defaults = {name: variable.get("default") for name, variable in BUNDLE["variables"].items()}
    variables = defaults | TARGETS[target].get("variables", {})
    for name in ("env", "serverless_env"):
        assert (PROJECT / "conf" / f"{variables[name]}.yaml").is_file()
    if TARGETS[target].get("mode"):
        text = (PROJECT / "conf" / f"{variables['serverless_env']}.yaml").read_text()
        assert "${" not in text, "serverless has no environment variables"
        assert yaml.safe_load(text)["storage"]["source"].startswith("/Volumes/"), "volumes need no mount"


def test_each_target_has_what_its_mode_asks_for() -> None:
    """As github.com/databricks/cli checks it in validate_target_mode.go and run_as.go, release 1.13.0."""
    modes = {name: target.get("mode") for name, target in TARGETS.items()}
    assert modes == {"laptop": None, "dev": "development", "azure": "production"}
    assert TARGETS["laptop"] == {"default": True}
    # In development, jobs run as the developer, and paths and names hold the developer's.
    assert set(TARGETS["dev"]) == {"mode", "variables"}
    production = TARGETS["azure"]
    assert len(production["run_as"]) == 1
    identity = production["run_as"]["service_principal_name"]
    assert f"/{identity}/" in production["workspace"]["root_path"]
    assert {"service_principal_name": identity, "level": "CAN_MANAGE"} in production["permissions"]


@pytest.mark.parametrize("key", JOBS)
def test_each_task_has_compute_with_the_wheel(key: str) -> None:
    job = JOBS[key]
    wheel = "../../dist/*.whl"
    for task in job["tasks"]:
        assert not task.get("existing_cluster_id")
        if "environment_key" in task:
            assert not task.keys() & {"job_cluster_key", "libraries"}
            (environment,) = job["environments"]
            assert environment["environment_key"] == task["environment_key"]
            version = environment["spec"]["environment_version"]
            assert (
                PROJECT / "tests" / "repository" / "data" / "databricks" / f"serverless-{version}.txt"
            ).is_file()
            assert environment["spec"]["dependencies"] == [wheel]
        else:
            assert job["job_clusters"] == [
                {"job_cluster_key": task["job_cluster_key"], "new_cluster": "${var.cluster}"}
            ]
            assert task["libraries"][0] == {"whl": wheel}
            packages = [library["pypi"]["package"] for library in task["libraries"][1:]]
            # Only this notebook needs packages of an extra.
            is_shop = task["notebook_task"]["notebook_path"].endswith("/shop_change.py")
            assert packages == PSYCOPG * is_shop
    env = "serverless_env" if "environments" in job else "env"
    assert {"name": "env", "default": f"${{var.{env}}}"} in job["parameters"]


def test_there_are_jobs_on_clusters_and_on_serverless() -> None:
    assert CLUSTER["spark_version"] in RUNTIMES
    assert {"environments" in job for job in JOBS.values()} == {True, False}


def test_the_bundle_builds_the_wheel() -> None:
    (artifact,) = BUNDLE["artifacts"].values()
    assert artifact == {"type": "whl", "path": ".", "build": "make wheel"}
    assert "\nwheel: " in (PROJECT / "Makefile").read_text()
