"""The same numbers for Prometheus, with names that stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topiclake.monitoring.store import Store
from workbench.dashboard.snapshot import overview

#: Longer names are cut.
NAME = 100
#: Series of topics, and of partitions, of one query: its most lagging topics. With more partitions it has no
#: series of partitions, since they would come and go.
SERIES = 500
STATES = ("running", "ended", "failed", "killed")
_LABELS = ["query", "query_id"]
_TOPICS = (
    "SELECT topic, sum(lag_records) AS lag_records, max(lag_seconds) AS lag_seconds FROM partitions"
    " WHERE query_id = ?1 GROUP BY topic ORDER BY lag_records DESC, topic LIMIT ?2"
)
_PARTITIONS = (
    "SELECT * FROM partitions WHERE query_id = ?1"
    " AND (SELECT count(*) FROM partitions WHERE query_id = ?1) <= ?2"
)
#: Name, help, and the key of `overview`; what is counted over all batches is a counter.
_GAUGES = (
    ("input_records_per_second", "Records that arrived per second, in the newest batch.", "input_rate", 1),
    (
        "processed_records_per_second",
        "Records processed per second, in the newest batch.",
        "processing_rate",
        1,
    ),
    ("batch_duration_seconds", "Duration of the newest batch.", "milliseconds", 1000),
    ("batch_timestamp_seconds", "Begin of the newest batch.", "at", 1),
    ("heard_timestamp_seconds", "Time of the newest report of the query.", "heard", 1),
    ("lag_records", "Unread records in Kafka.", "lag_records", 1),
    ("lag_seconds", "Seconds since the first unread record arrived.", "lag_seconds", 1),
    ("state_rows", "Rows of the state.", "state_rows", 1),
    ("state_bytes", "Memory of the state.", "state_bytes", 1),
)
_COUNTERS = (
    ("records", "Records read.", "rows"),
    ("late_rows", "Rows that were too late for the watermark.", "late_rows"),
    ("written_rows", "Rows that the ingest wrote into its table.", "written"),
)


def exposition(store: Store) -> bytes:
    """Return all metrics in Prometheus' text format.

    Each has the labels `query` (its name) and `query_id` (the checkpoint's). The lag of topics has `topic`,
    that of partitions also `partition`, and quarantined records have `reason`. Series: at most
    `snapshot.QUERIES` queries, seven reasons each, and `SERIES` topics and partitions of one.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Queries(store))
    return generate_latest(registry)


class _Queries(Collector):
    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        queries = overview(self._store)
        yield from _gauges(queries)
        yield from _counters(queries)
        yield from self._lags(queries, _TOPICS, "topic")
        yield from self._lags(queries, _PARTITIONS, "topic", "partition")

    def _lags(self, queries: Iterable[Mapping[str, Any]], sql: str, *names: str) -> Iterator[Metric]:
        labels, part = [*_LABELS, *names], names[-1]
        records = GaugeMetricFamily(
            f"topiclake_{part}_lag_records", f"Lag of one {part} in records.", labels=labels
        )
        seconds = GaugeMetricFamily(
            f"topiclake_{part}_lag_seconds", f"Lag of one {part} in seconds.", labels=labels, unit="seconds"
        )
        for query in queries:
            for row in self._store.rows(sql, query["id"], SERIES):
                values = [*_values(query), *(str(row[name]) for name in names)]
                records.add_metric(values, row["lag_records"])
                seconds.add_metric(values, row["lag_seconds"])
        yield records
        yield seconds


def _gauges(queries: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "topiclake_query_state", "1 for the state that a query is in.", labels=[*_LABELS, "state"]
    )
    committed = GaugeMetricFamily(
        "topiclake_table_committed_timestamp_seconds",
        "Time of the newest commit with rows.",
        labels=_LABELS,
    )
    for query in queries:
        for name in STATES:
            state.add_metric([*_values(query), name], query["state"] == name)
        if query["committed"]:
            committed.add_metric(_values(query), query["committed"])
    yield state
    yield committed
    for name, text, key, divisor in _GAUGES:
        gauge = GaugeMetricFamily(f"topiclake_query_{name}", text, labels=_LABELS)
        for query in queries:
            if query[key] is not None:
                gauge.add_metric(_values(query), query[key] / divisor)
        yield gauge


def _counters(queries: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    for name, text, key in _COUNTERS:
        counter = CounterMetricFamily(f"topiclake_query_{name}", text, labels=_LABELS)
        for query in queries:
            if query[key] is not None:
                counter.add_metric(_values(query), query[key])
        yield counter
    quarantined = CounterMetricFamily(
        "topiclake_query_quarantined_records",
        "Rejected records, by reason.",
        labels=[*_LABELS, "reason"],
    )
    for query in queries:
        for reason, rows in query["quarantined"].items():
            quarantined.add_metric([*_values(query), reason], rows)
    yield quarantined


def _values(query: Mapping[str, Any]) -> list[str]:
    return [query["name"][:NAME], query["id"]]
