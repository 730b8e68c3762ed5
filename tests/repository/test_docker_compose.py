"""docker-compose.yaml, checked without Docker: its schema, health, ports, tags."""

from __future__ import annotations

import copy
import posixpath
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text("utf-8"))

Compose = dict[str, Any]


def violations(*files: Path) -> str:
    """What the compose specification's own schema (vendored, so offline) says against the files."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def is_one_shot(service: Compose) -> bool:
    """A service that runs and ends."""
    return "job" in service.get("profiles", [])


def images(compose: Compose) -> dict[str, list[str]]:
    """The images that each service runs or is built from."""
    return {
        name: [service["image"]] if "image" in service else base_images(ROOT / service["build"]["dockerfile"])
        for name, service in compose["services"].items()
    }


def base_images(dockerfile: Path) -> list[str]:
    return re.findall(r"^FROM (\S+)", dockerfile.read_text("utf-8"), re.MULTILINE)


def without_healthcheck(compose: Compose) -> list[str]:
    services = compose["services"].items()
    return [
        name
        for name, service in services
        if not is_one_shot(service) and "test" not in service.get("healthcheck", {})
    ]


def reachable_from_outside(compose: Compose) -> list[str]:
    """Ports that are not bound to 127.0.0.1, in the short or the long spelling."""
    found = []
    for name, service in compose["services"].items():
        if service.get("network_mode") == "host":
            found.append(f"{name}: network_mode host")
        for port in service.get("ports", []):
            address = port.get("host_ip") if isinstance(port, dict) else str(port).partition(":")[0]
            if address != "127.0.0.1":
                found.append(f"{name}: {port}")
    return found


def without_version(compose: Compose) -> list[str]:
    """Images whose tag is missing, or has no digit as `latest` or `stable` have none."""
    every = [image for found in images(compose).values() for image in found]
    return [
        image for image in every if not re.search(r":[^:/]*\d[^:/]*$", image) or image.endswith(":latest")
    ]


def not_waited_for(compose: Compose) -> list[str]:
    """Dependencies that are only started, not healthy, when the service starts."""
    found = []
    for name, service in compose["services"].items():
        needed = service.get("depends_on", {})
        conditions = needed if isinstance(needed, dict) else {other: {} for other in needed}
        for other, details in conditions.items():
            if details.get("condition") != "service_healthy":
                found.append(f"{name} needs {other}")
    return found


def anonymous_volumes(compose: Compose) -> list[str]:
    """Mounts that are neither a named volume nor a folder of the project."""
    mounts = [str(mount) for service in compose["services"].values() for mount in service.get("volumes", [])]
    return [m for m in mounts if not m.startswith("./") and m.partition(":")[0] not in compose["volumes"]]


def test_the_file_follows_the_compose_specification() -> None:
    assert violations(ROOT / "docker-compose.yaml") == ""


def test_a_file_against_the_specification_is_named(tmp_path: Path) -> None:
    broken: dict[str, Compose] = {
        "helthcheck": {"services": {"kafka": {"image": "apache/kafka:4.1.0", "helthcheck": {}}}},
        "restart": {"services": {"kafka": {"image": "apache/kafka:4.1.0", "restart": 1}}},
        "is not of type 'object'": {"services": ["kafka"]},
    }
    for number, compose in enumerate(broken.values()):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(compose), "utf-8")
    output = violations(*sorted(tmp_path.iterdir()))
    for number, named in enumerate(broken):
        assert re.search(rf"{number}\.yaml::.*{named}", output), output


CHECKS = [without_healthcheck, reachable_from_outside, without_version, not_waited_for, anonymous_volumes]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_service_passes(check: Callable[[Compose], list[str]]) -> None:
    assert check(COMPOSE) == []


@pytest.mark.parametrize(
    ("check", "service", "key", "value"),
    [
        (without_healthcheck, "kafka", "healthcheck", {}),
        (without_healthcheck, "s3", "healthcheck", {"interval": "5s"}),
        (reachable_from_outside, "kafka", "ports", ["9092:9092"]),
        (reachable_from_outside, "kafka", "ports", [9092]),
        (reachable_from_outside, "kafka", "ports", ["0.0.0.0:9092:9092"]),
        (reachable_from_outside, "s3", "ports", [{"target": 7070, "published": "7070"}]),
        (reachable_from_outside, "s3", "network_mode", "host"),
        (without_version, "kafka", "image", "apache/kafka"),
        (without_version, "kafka", "image", "apache/kafka:latest"),
        (without_version, "kafka", "image", "localhost:5000/kafka"),
        (not_waited_for, "schema-registry", "depends_on", ["kafka"]),
        (not_waited_for, "schema-registry", "depends_on", {"kafka": {"condition": "service_started"}}),
        (anonymous_volumes, "kafka", "volumes", ["/var/lib/kafka/data"]),
        (anonymous_volumes, "kafka", "volumes", ["kafak:/var/lib/kafka/data"]),
    ],
)
def test_a_service_that_breaks_a_rule_is_named(
    check: Callable[[Compose], list[str]], service: str, key: str, value: object
) -> None:
    broken = copy.deepcopy(COMPOSE)
    broken["services"][service][key] = value
    assert len(check(broken)) == 1


def test_the_services_of_the_issue_are_there() -> None:
    plain = {"kafka", "schema-registry", "azurite", "s3"}
    assert set(COMPOSE["services"]) == plain | {"spark", "dashboard", "prometheus", "grafana"}


def test_a_plain_up_leaves_out_the_job_and_what_watches_it() -> None:
    profiles = {name: service.get("profiles") for name, service in COMPOSE["services"].items()}
    assert {name: found for name, found in profiles.items() if found} == {
        "spark": ["job"],
        "dashboard": ["monitoring"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_spark_gets_every_variable_of_the_local_configuration() -> None:
    asked = set(re.findall(r"\$\{(WORKBENCH_\w+)\}", (ROOT / "conf" / "local.yaml").read_text("utf-8")))
    assert asked
    assert asked <= set(COMPOSE["services"]["spark"]["environment"])


def test_spark_runs_a_notebook_that_exists_with_the_local_configuration() -> None:
    notebook, *options = COMPOSE["services"]["spark"]["command"]
    assert options == ["-p", "env=local"]
    assert (ROOT / notebook).is_file()


def test_all_that_is_mounted_exists() -> None:
    mounts = [mount for service in COMPOSE["services"].values() for mount in service.get("volumes", [])]
    ours = [ROOT / mount.partition(":")[0] for mount in mounts if mount.startswith("./")]
    assert len(ours) > 8
    assert [path for path in ours if not path.exists()] == []


def mounted(service: str, path: str) -> str:
    """What a path in a container is here, or in which volume."""
    for mount in COMPOSE["services"][service]["volumes"]:
        source, target = mount.split(":")[:2]
        if path == target or path.startswith(f"{target}/"):
            return source + path.removeprefix(target)
    raise AssertionError(f"{path} is not mounted into {service}")


def test_the_dashboard_sees_the_queries_of_spark_and_their_processes() -> None:
    spark, dashboard = COMPOSE["services"]["spark"], COMPOSE["services"]["dashboard"]
    assert (spark["pid"], spark["build"]) == (dashboard["pid"], dashboard["build"])
    assert set(dashboard["volumes"]) <= set(spark["volumes"])
    assert mounted("spark", "/topiclake/.workbench/data") == mounted(
        "dashboard", "/topiclake/.workbench/data"
    )


def test_prometheus_finds_the_dashboard_and_its_token() -> None:
    dashboard, prometheus = COMPOSE["services"]["dashboard"], COMPOSE["services"]["prometheus"]
    (option,) = [one for one in prometheus["command"] if one.startswith("--config.file=")]
    file = option.partition("=")[2]
    (job,) = yaml.safe_load((ROOT / mounted("prometheus", file)).read_text("utf-8"))["scrape_configs"]
    token = posixpath.normpath(f"{file}/../{job['authorization']['credentials_file']}")
    assert mounted("prometheus", token) == mounted("dashboard", "/topiclake/.workbench/data/dashboard.token")
    # The page answers only who asks for the port that it listens on, on loopback.
    port = dashboard["command"][dashboard["command"].index("--port") + 1]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    assert prometheus["network_mode"] == "service:dashboard"
    assert f"127.0.0.1:{port}:{port}" in dashboard["ports"]


def test_grafana_finds_prometheus_and_its_dashboard() -> None:
    provisioned = {
        name: yaml.safe_load(
            (ROOT / mounted("grafana", f"/etc/grafana/provisioning/{name}/topiclake.yaml")).read_text("utf-8")
        )
        for name in ("datasources", "dashboards")
    }
    (source,), (provider,) = provisioned["datasources"]["datasources"], provisioned["dashboards"]["providers"]
    assert source["url"] == "http://dashboard:9090"
    assert "127.0.0.1:${PROMETHEUS_PORT:-9090}:9090" in COMPOSE["services"]["dashboard"]["ports"]
    configuration = yaml.safe_load((ROOT / "deploy/monitoring/prometheus.yml").read_text("utf-8"))
    assert source["jsonData"]["timeInterval"] == configuration["global"]["scrape_interval"]
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert posixpath.dirname(home) == provider["options"]["path"]
    assert mounted("grafana", home) == "./deploy/monitoring/grafana/topiclake.json"
