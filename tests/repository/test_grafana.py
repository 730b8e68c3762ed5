"""Grafana's dashboard and Prometheus' alerts: of the right form, and about metrics that there are."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.reports import report_queries
from topiclake.monitoring.store import Store
from workbench.dashboard.metrics import exposition

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "topiclake.json").read_text("utf-8"))
PANELS = DASHBOARD["panels"]
ALERTS = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
COLUMNS = 24
SELECTOR = re.compile(r"\b(topiclake_\w+|ALERTS|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring) ?\(([^)]*)\)")

Metrics = Mapping[str, set[str]]


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    """Name → labels: what /metrics tells, and what Prometheus itself adds."""
    store = Store(tmp_path / "reports.db")
    report_queries(store)
    text = exposition(store).decode()
    store.close()
    labels_by_name = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    of_alerts = {"alertname", "alertstate", "severity"}
    return labels_by_name | {
        "up": {"job", "instance"},
        "ALERTS": of_alerts.union(*labels_by_name.values()),
    }


def strangers(expression: str, metrics: Metrics) -> list[str]:
    """Metrics of a PromQL expression that are not told, and labels that they do not have."""
    found: list[str] = []
    known: set[str] = set()
    for name, matchers in SELECTOR.findall(expression):
        labels = metrics.get(name)
        known |= labels or set()
        asked = re.findall(r"(\w+) ?(?:=|!)", matchers)
        found += [name] if labels is None else [f"{name}: {label}" for label in asked if label not in labels]
    grouped = [label for text in GROUPING.findall(expression) for label in re.findall(r"\w+", text)]
    return found + [label for label in grouped if label not in known]


def labels_of(expression: str, metrics: Metrics) -> set[str]:
    return set().union(*(metrics[name] for name, _ in SELECTOR.findall(expression)))


def targets() -> Iterator[dict[str, Any]]:
    for panel in PANELS:
        yield from panel["targets"]


def test_each_metric_and_label_that_is_asked_for_is_told(metrics: Metrics) -> None:
    asked = [rule["expr"] for rule in ALERTS] + [target["expr"] for target in targets()]
    assert len(asked) > 20
    assert [strange for expression in asked for strange in strangers(expression, metrics)] == []
    unused = {name for name in metrics if not any(name in expression for expression in asked)}
    assert unused == {"topiclake_query_batch_timestamp_seconds", "topiclake_query_records_total"}


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("topiclake_query_lags > 1", ["topiclake_query_lags"]),
        ('topiclake_query_state{status="failed"}', ["topiclake_query_state: status"]),
        ('topiclake_query_state{query!="a", reason=~"b"}', ["topiclake_query_state: reason"]),
        ("sum by (query, topic) (topiclake_query_state)", ["topic"]),
        ("topiclake_query_state and on (partition) up", ["partition"]),
    ],
)
def test_what_is_not_told_is_named(expression: str, named: list[str], metrics: Metrics) -> None:
    assert strangers(expression, metrics) == named


def test_texts_name_labels_that_there_are(metrics: Metrics) -> None:
    for rule in ALERTS:
        named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert named <= labels_of(rule["expr"], metrics), rule["alert"]
    for target in targets():
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert named <= labels_of(target["expr"], metrics), target["expr"]


def test_each_panel_explains_itself_and_follows_the_choice_of_queries() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all('query=~"$query"' in one["expr"] or "up{" in one["expr"] for one in panel["targets"])


def misplaced(panels: list[dict[str, Any]]) -> list[str]:
    """Panels that share an id, lie on each other or reach over the edge."""
    found = [one["title"] for one in panels if one["gridPos"]["x"] + one["gridPos"]["w"] > COLUMNS]
    for one, other in combinations(panels, 2):
        if one["id"] == other["id"] or _overlap(one["gridPos"], other["gridPos"]):
            found.append(f"{one['title']} and {other['title']}")
    return found


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def test_no_panel_hides_another() -> None:
    assert misplaced(PANELS) == []


@pytest.mark.parametrize("change", [{"x": 3}, {"w": 5}, {"h": 5}, {"x": 22, "y": 60}])
def test_a_panel_that_is_misplaced_is_named(change: dict[str, int]) -> None:
    broken = copy.deepcopy(PANELS)
    broken[1]["gridPos"] |= change
    assert len(misplaced(broken)) == 1


def test_two_panels_with_one_id_are_named() -> None:
    broken = copy.deepcopy(PANELS)
    broken[3]["id"] = broken[0]["id"]
    assert misplaced(broken) == [f"{broken[0]['title']} and {broken[3]['title']}"]


def lost(before: object, after: object, place: str = "") -> Iterator[str]:
    """Places of a JSON document that another lacks, or has with another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{place}.{number}")
    elif before != after:
        yield place


# Grafana's own types of a dashboard and of its panels ask for this Python.
if sys.version_info >= (3, 11):
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.cog.runtime import panelcfg_config
    from grafana_foundation_sdk.models import units
    from grafana_foundation_sdk.models.dashboard import Dashboard

    def strange_to_grafana(dashboard: dict[str, Any]) -> list[str]:
        """What Grafana's types do not know: keys, values, kinds of panels, units."""
        register_default_plugins()
        known = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(dashboard))))
        kinds = [panel["type"] for panel in dashboard["panels"]]
        asked = re.findall(r'"unit": "(\w+)"', json.dumps(dashboard))
        return [
            *lost(dashboard, known),
            *(kind for kind in kinds if panelcfg_config(kind) is None),
            *(unit for unit in asked if unit not in vars(units).values()),
        ]

    def test_the_dashboard_is_what_grafana_knows() -> None:
        assert strange_to_grafana(DASHBOARD) == []

    @pytest.mark.parametrize(
        ("path", "key", "value"),
        [
            ((), "refreshh", "15s"),
            (("panels", 0), "descripton", "x"),
            (("panels", 0), "type", "tabel"),
            (("panels", 6, "options"), "rowHight", 1),
            (("panels", 8, "fieldConfig", "defaults", "custom"), "drawstyle", "line"),
            (("panels", 8, "fieldConfig", "defaults"), "unit", "recs"),
            (("panels", 8, "targets", 0), "expression", "up"),
            (("templating", "list", 1), "multy", True),
        ],
    )
    def test_what_grafana_does_not_know_is_named(
        path: tuple[str | int, ...], key: str, value: object
    ) -> None:
        broken = copy.deepcopy(DASHBOARD)
        place = broken
        for step in path:
            place = place[step]
        place[key] = value
        assert strange_to_grafana(broken) != []
