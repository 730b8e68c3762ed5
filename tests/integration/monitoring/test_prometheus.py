"""A real Prometheus with deploy/monitoring/, beside a real dashboard: alerts fire, panels have data."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.prometheus import Prometheus, prometheus, promtool
from tests.support.dashboards import dashboard
from tests.support.reports import report_queries
from topiclake.monitoring.store import Store
from workbench.services.query_watch import reports_file

pytestmark = pytest.mark.root("Debian's prometheus")

PROJECT = Path(__file__).parents[3]
MONITORING = PROJECT / "deploy" / "monitoring"
PANELS = json.loads((MONITORING / "grafana" / "topiclake.json").read_text("utf-8"))["panels"]
#: Of the two queries; one alert for each reason.
FIRING = ["QueryFailed", "RecordsInQuarantine", "RecordsInQuarantine", "RowsCameTooLate"]
SECONDS = 60.0


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of deploy/monitoring/ in a checkout whose dashboard has run."""
    (tmp_path / ".workbench" / "data").mkdir(parents=True)
    (tmp_path / ".workbench" / "data" / "dashboard.token").write_text("token")
    return shutil.copytree(MONITORING, tmp_path / "deploy" / "monitoring")


def test_promtool_accepts_the_configuration_and_each_alert_fires_when_it_should(copied: Path) -> None:
    for arguments in (
        ("check", "config", copied / "prometheus.yml"),
        ("check", "rules", "--lint-fatal", copied / "alerts.yml"),
        ("test", "rules", copied / "alerts_test.yml"),
    ):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("prometheus.yml", "scrape_configs:", "scrape_config:"),
        ("prometheus.yml", "dashboard.token", "another.token"),
        ("alerts.yml", "max by (query", "max by query"),
        ("alerts.yml", "> 300", "> 9000"),
        ("alerts.yml", "$labels.reason", "$label.reason"),
    ],
)
def test_promtool_names_what_is_wrong(copied: Path, file: str, before: str, after: str) -> None:
    text = (copied / file).read_text("utf-8")
    assert before in text
    (copied / file).write_text(text.replace(before, after), "utf-8")
    checks = [("check", "config", copied / "prometheus.yml"), ("test", "rules", copied / "alerts_test.yml")]
    assert any(promtool(*arguments).returncode for arguments in checks)


@contextmanager
def watching(checkout: Path, address: str) -> Iterator[Prometheus]:
    """Run Prometheus with the files of deploy/monitoring/, only quicker and with this dashboard's port."""
    copied = shutil.copytree(MONITORING, checkout / "deploy" / "monitoring")
    configuration = (copied / "prometheus.yml").read_text("utf-8")
    port = re.findall(r":(\d+)/", address)[0]
    quick = configuration.replace("15s", "1s").replace("127.0.0.1:8765", f"127.0.0.1:{port}")
    assert (quick.count("1s"), quick.count(f":{port}")) == (2, 1)
    (copied / "prometheus.yml").write_text(quick, "utf-8")
    with prometheus(copied / "prometheus.yml", checkout / "prometheus") as server:
        yield server


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A dashboard with two queries: the folder of its home, and its address."""
    folder = tmp_path_factory.mktemp("checkout")
    store = Store(reports_file(folder / ".workbench"))
    report_queries(store)
    store.close()
    with dashboard(folder / ".workbench") as (_, address):
        yield folder, address


@pytest.fixture(scope="module")
def server(page: tuple[Path, str]) -> Iterator[Prometheus]:
    """Prometheus, which has asked that dashboard."""
    with watching(*page) as server:
        yield server


def soon(ask: Callable[[], Any]) -> Any:
    """Return what `ask` gives, as soon as that is something."""
    deadline = time.monotonic() + SECONDS
    while not (found := ask()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def test_the_target_is_up(server: Prometheus) -> None:
    (up,) = soon(lambda: server.find('up{job="topiclake"} == 1'))
    assert up["value"][1] == "1"


def test_what_should_fire_does_and_nothing_else(server: Prometheus) -> None:
    soon(lambda: len(server.get("alerts")["alerts"]) >= len(FIRING))
    alerts = server.get("alerts")["alerts"]
    assert sorted(one["labels"]["alertname"] for one in alerts) == FIRING
    assert {one["state"] for one in alerts} == {"firing"}
    summaries = {one["annotations"]["summary"] for one in alerts}
    assert {"The state of isp is failed", "gps wrote 2 records into quarantine: bad_magic"} <= summaries


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_has_data_with_the_labels_of_its_legend(panel: dict[str, Any], server: Prometheus) -> None:
    for target in panel["targets"]:
        expression = target["expr"].replace("$query", ".*")
        expression = re.sub(r"\$__(rate_)?interval", "1m", expression)
        found = soon(lambda asked=expression: server.find(asked))
        assert found, expression
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert all(named <= set(series["metric"]) for series in found), target


def test_each_query_is_shown_in_the_state_that_it_is_in(server: Prometheus) -> None:
    (panel,) = [one for one in PANELS if one["type"] == "state-timeline"]
    (shown,) = panel["fieldConfig"]["defaults"]["mappings"]
    expression = panel["targets"][0]["expr"].replace("$query", ".*")
    states = {
        series["metric"]["query"]: shown["options"][series["value"][1]]["text"]
        for series in soon(lambda: server.find(expression))
    }
    assert states == {"gps": "running", "isp": "failed"}


def test_the_choice_of_queries_has_each_of_them(server: Prometheus) -> None:
    asked = {"match[]": "topiclake_query_state"}
    assert soon(lambda: server.get("label/query/values", **asked)) == ["gps", "isp"]


def test_who_has_another_token_gets_nothing_and_says_so(page: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / ".workbench" / "data").mkdir(parents=True)
    (tmp_path / ".workbench" / "data" / "dashboard.token").write_text("wrong")
    with watching(tmp_path, page[1]) as server:
        assert soon(lambda: server.find('up{job="topiclake"} == 0'))
        (target,) = server.get("targets")["activeTargets"]
        assert (target["health"], "401" in target["lastError"]) == ("down", True)
        (alert,) = soon(lambda: server.get("alerts")["alerts"])
        assert (alert["labels"]["alertname"], alert["state"]) == ("DashboardIsGone", "pending")
        assert server.find("topiclake_query_state") == []


def test_the_health_check_of_the_container_passes_with_the_token_alone(page: tuple[Path, str]) -> None:
    folder, address = page
    services = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text("utf-8"))["services"]
    _, _, *check = services["dashboard"]["healthcheck"]["test"]
    port = re.findall(r":(\d+)/", address)[0]
    here = [one.replace("/topiclake", str(folder)).replace("8765", port) for one in check]
    assert here != check
    healthy = subprocess.run([sys.executable, *here], check=False, timeout=60)
    ill = subprocess.run(
        [sys.executable, *(one.replace("Bearer", "Barer") for one in here)],
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert (healthy.returncode, ill.returncode, "401" in ill.stderr) == (0, 1, True)
