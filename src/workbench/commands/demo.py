"""`python -m workbench demo`: the main job on real input, and a check of its result."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from topiclake.config.kafka import KafkaSettings
from topiclake.errors import IngestError, PlatformError
from topiclake.kafka.offsets import topic_offsets
from workbench.commands.activity import Activity
from workbench.dashboard.serving import dashboard_during
from workbench.host import processes
from workbench.host.home import Home
from workbench.host.installation import clone
from workbench.host.java import require_java, short_lived
from workbench.services import control as services
from workbench.services.service import Addresses

if TYPE_CHECKING:
    from workbench.kernel.process import KernelProcess

PUBLISH, INGEST = "gps_publish", "gps_ingest"
#: Keys of the notebooks' exit values.
PUBLISHED = frozenset({"records", "topic"})
INGESTED = frozenset({"rows_written", "quarantined", "table", "quarantine", "preview"})


@dataclass(frozen=True)
class DemoResult:
    """Whether every record of the demo arrived."""

    ok: bool
    text: str


def run_demo(home: Home, activity: Activity) -> None:
    """Publish GPS tracks, ingest them as a job while the dashboard runs, and print a summary.

    On a terminal the dashboard opens in a browser. The services stay as they were: started for the demo, they
    are stopped after it, however it ends.

    Raises:
        IngestError: The counts do not add up, or a notebook ended without them.
        StorageError: Another demo runs in this home.
        TopiclakeError: The services or a notebook failed.
    """
    require_java()
    for name in (PUBLISH, INGEST):
        _notebook(home, name)
    with home.sole("demo"), processes.variables_set(short_lived()):
        began = all(service.state == "stopped" for service in services.status(home))
        console = Console()
        announcement = "its streams, live: {}"
        with dashboard_during(home, activity.report, announcement, browser=console.is_terminal):
            _publish_and_ingest(home, activity, console, began=began)


def _publish_and_ingest(home: Home, activity: Activity, console: Console, *, began: bool) -> None:
    try:
        with activity.during("1/3 starting the services"):
            addresses = services.up(home, activity.report)
        variables, earliest = addresses.environment(), {"starting_offsets": "earliest"}
        from workbench.runner.runner import early_kernel

        # Spark starts while the records are published.
        with early_kernel(_notebook(home, INGEST), earliest, home, variables) as kernel:
            published, _ = _run(home, activity, variables, "2/3", PUBLISH, {}, PUBLISHED)
            ingested, page = _run(home, activity, variables, "3/3", INGEST, earliest, INGESTED, kernel)
        result = compare_counts(published, ingested, lambda: topic_records(addresses, published["topic"]))
        print_summary(console, published, ingested, page, result)
        if not result.ok:
            raise IngestError(f"the counts do not add up: {result.text}", f"open {page}", page=page)
    finally:
        if began:
            services.down(home, activity.report)


def compare_counts(
    published: Mapping[str, Any], ingested: Mapping[str, Any], in_topic: Callable[[], int]
) -> DemoResult:
    """Compare what this run published with what arrived.

    Args:
        published: The exit value of gps_publish.
        ingested: The exit value of gps_ingest.
        in_topic: Returns the number of records in the topic. It is called only when more records arrived than
            were published. That is right after a run that was interrupted between publishing and ingesting.
    """
    records = int(published["records"])
    arrived = int(ingested["rows_written"]) + sum(ingested["quarantined"].values())
    if arrived == records:
        return DemoResult(True, f"all {records:,} records of this run arrived")
    counts = f"{records:,} published, {arrived:,} arrived"
    in_tables = int(ingested["table"]["rows"]) + int(ingested["quarantine"]["rows"])
    if arrived > records and in_tables == in_topic():
        return DemoResult(True, f"{counts}, {arrived - records:,} of them left by an earlier run")
    return DemoResult(False, counts)


def topic_records(addresses: Addresses, topic: str) -> int:
    """Return the number of records in the topic."""
    kafka = KafkaSettings(bootstrap_servers=addresses.kafka_bootstrap_servers)
    return sum(end - first for first, end in topic_offsets(kafka, topic).values())


def print_summary(
    console: Console,
    published: Mapping[str, Any],
    ingested: Mapping[str, Any],
    page: str,
    result: DemoResult,
) -> None:
    """Print the counts, the first rows of the table and where the executed notebook is."""
    table, quarantine = ingested["table"], ingested["quarantine"]
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in ingested["quarantined"].items())
    summary = Table(title="GPS events: Kafka → Delta", show_header=False, title_justify="left")
    summary.add_row("records published", f"{published['records']:,} to topic {published['topic']}")
    summary.add_row("rows written", f"{ingested['rows_written']:,} in this run")
    summary.add_row("rows in the table", f"{table['rows']:,}")
    summary.add_row("rows in quarantine", f"{quarantine['rows']:,}" + (f" ({reasons})" if reasons else ""))
    summary.add_row("table version", str(table["version"]))
    summary.add_row("table", escape(str(table["path"])))
    console.print(summary)
    if ingested["preview"]:
        console.print(preview_table(ingested["preview"]))
    console.print(f"{'✓' if result.ok else '✗'} {result.text}", markup=False)
    console.print(f"executed notebook: {page}", markup=False, soft_wrap=True)
    console.print("see its streams again: python -m workbench dashboard", markup=False, soft_wrap=True)


def preview_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the first rows of the table, with the columns of the table."""
    table = Table(title="SELECT * FROM gps", title_justify="left")
    for name in rows[0]:
        table.add_column(escape(name))
    for row in rows:
        table.add_row(*(escape(str(row.get(name, ""))) for name in rows[0]))
    return table


def _run(
    home: Home,
    activity: Activity,
    variables: Mapping[str, str],
    step: str,
    name: str,
    parameters: Mapping[str, str],
    keys: Set[str],
    kernel: KernelProcess | None = None,
) -> tuple[dict[str, Any], str]:
    """Run a notebook of the project; return its exit value, read as JSON, and the path of its page."""
    notebook = _notebook(home, name)
    from workbench.runner.run import value_of
    from workbench.runner.runner import run_notebook

    activity.report(f"{step} running notebooks/{name}.py")
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        done = run_notebook(notebook, parameters, home, variables, kernel=kernel)
    finally:
        # The runner's event loop leaves SIGTERM at its default, which would end this process at once. The
        # services would keep running.
        signal.signal(signal.SIGTERM, terminate)
    activity.report(f"{step} notebooks/{name}.py took {done.seconds:.1f} s")
    return value_of(done, notebook, keys), str(done.html)


def _notebook(home: Home, name: str) -> Path:
    notebook = home.project / "notebooks" / f"{name}.py"
    if not notebook.is_file():
        elsewhere = f"run python -m workbench demo in a folder that is not below {home.project}"
        remedy = "git checkout notebooks" if home.project == clone() else elsewhere
        raise PlatformError(f"{notebook} is missing", remedy, notebook=str(notebook))
    return notebook
