"""The commands of `topiclake`, which is `python -m workbench` by another name."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topiclake.config.load import pipeline_names
from topiclake.errors import StorageError, TopiclakeError
from workbench.commands import logs as log_files
from workbench.commands.activity import Activity
from workbench.commands.topic_options import (
    Request,
    assignment_option,
    make_request,
    require_no_options,
    topic_options,
)
from workbench.host import processes
from workbench.host.home import Home, folder_bytes
from workbench.host.jars import fetch_jars
from workbench.host.java import short_lived
from workbench.host.parameters import parse_parameters
from workbench.host.ports import HOST
from workbench.services import control as services
from workbench.services.service import ServiceStatus

if TYPE_CHECKING:
    from rich.console import Console

JOB = "job"
SERVICE_NAMES = ("kafka", "schema-registry")
MORE_LOGS = ("azure", "s3", "postgres", "kafka-connect", "spark-master", "spark-worker-1", "spark-worker-2")
STORES = ("azure", "s3")
#: Width of a table in a file or a pipe, where no terminal breaks its lines.
_PIPE_COLUMNS = 200
_SIGNS = {"running": "✓", "stopped": "·", "silent": "✗", "crashed": "✗"}


class Commands(click.Group):
    """The commands. Those of jobs are loaded when one of them is called, which saves the others 0.2 s."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name != JOB:
            return super().get_command(ctx, cmd_name)
        from workbench.commands.job import job

        return job

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), JOB])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Run notebooks and jobs on this machine, with a Kafka broker and a schema registry."""


@cli.command()
@click.option(
    "--with",
    "extras",
    type=click.Choice(sorted(services.EXTRAS)),
    multiple=True,
    help="A blob store (notebooks: -p env=local-<name>), a database whose changes are topics, or a cluster "
    "for notebooks; may be repeated.",
)
def up(extras: tuple[str, ...]) -> None:
    """Start the services, keep them running, and print their addresses."""
    home, activity = Home.find(), Activity()
    with activity.during("starting the services"):
        addresses = services.up(home, activity.report, extras=extras)
    click.echo(f"Kafka            {addresses.kafka_bootstrap_servers}")
    click.echo(f"schema registry  {addresses.schema_registry_url}")
    click.echo(f"datalake         {addresses.datalake}")
    for service in services.status(home):
        if service.name not in SERVICE_NAMES:
            stored = f"  (notebooks: -p env=local-{service.name})" if service.name in STORES else ""
            click.echo(f"{service.name:<16} {service.address}{stored}")
    click.echo("stop them with   python -m workbench down")


@cli.command()
@click.pass_context
def status(context: click.Context) -> None:
    """Show the status of each service; exit 1 if one has crashed or does not answer."""
    statuses = services.status(Home.find())
    for service in statuses:
        location = f"  {service.address}  (process {service.pid})" if service.state == "running" else ""
        click.echo(f"{_SIGNS[service.state]} {service.name:<16} {service.state}{location}")
    for service in statuses:
        if service.state in ("crashed", "silent"):
            remedy = f"python -m workbench logs {service.name}, or python -m workbench up"
            click.echo(
                f"✗ {service.name} has {_failure(service)} (log: {service.log}); try: {remedy}", err=True
            )
    if any(service.state in ("crashed", "silent") for service in statuses):
        context.exit(1)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of {check, ok, detail, remedy}.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check what this machine needs; exit 1 when something is missing."""
    from workbench.commands.doctor import diagnose

    checks = diagnose(Home.find())
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            remedy = f"; try: {check.remedy}" if check.remedy else ""
            click.echo(f"{'✓' if check.ok else '✗'} {check.check:<16} {check.detail}{remedy}")
    if not all(check.ok for check in checks):
        context.exit(1)


@cli.command()
@click.argument("notebook", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@assignment_option
@click.option(
    "--cell-timeout",
    "cell_seconds",
    type=click.IntRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Stop a cell that takes longer, with its Spark job and streams; the run fails.",
)
def run(notebook: Path, assignments: tuple[str, ...], cell_seconds: int) -> None:
    """Run NOTEBOOK as a job, and save the executed notebook as .ipynb and .html.

    Notebooks find the services by WORKBENCH_KAFKA, WORKBENCH_SCHEMA_REGISTRY and WORKBENCH_DATALAKE; one that
    is set already stays as it is.
    """
    from workbench.runner.run import run_with_services

    result = run_with_services(
        notebook, parse_parameters(assignments), Home.find(), cell_seconds=cell_seconds
    )
    click.echo(f"exit value  {result.exit_value}")
    click.echo(f"notebook    {result.ipynb}")
    click.echo(f"page        {result.html}")
    click.echo(f"took        {result.seconds:.1f} s")


@cli.command()
@assignment_option
@click.option("--port", type=click.IntRange(1, 65535), help="8888 by default, or a free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def lab(assignments: tuple[str, ...], port: int | None, no_browser: bool) -> None:
    """Open JupyterLab with the project's notebooks, until Ctrl-C.

    Widgets have their defaults, or the values of -p. Kernels find the services as those of `run` do.
    """
    from workbench.lab.server import serve

    serve(Home.find(), parse_parameters(assignments), port=port or 0, browser=not no_browser)


@cli.command()
@click.argument("action", type=click.Choice(("list", "show", "replay")))
@click.argument("pipeline", default="")
@click.option("--reason", default="", help="Only records with this reason, such as unknown_schema_id.")
@assignment_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print the notebook's exit value: {path, reasons, rows, replay}."
)
def quarantine(action: str, pipeline: str, reason: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """List the reasons of records in quarantine, show the records, or replay those that decode now.

    PIPELINE is gps by default.
    """
    from workbench.commands.quarantine import KEYS, print_summary

    parameters = _parameters(assignments, pipeline) | {"action": action, "reason": reason}
    show = None if as_json else partial(print_summary, action=action)
    _run_notebook("quarantine.py", parameters, KEYS, show, reads_little=action != "replay")


@cli.command()
@click.argument("pipeline", default="")
@assignment_option
@click.option(
    "--notebook",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The notebook to run in place of notebooks/audit.py.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def audit(
    context: click.Context, pipeline: str, assignments: tuple[str, ...], notebook: Path | None, as_json: bool
) -> None:
    """Compare what Kafka holds with table and quarantine; exit 1 unless each record is in exactly one place.

    PIPELINE is gps by default.
    """
    from workbench.commands.audit import KEYS, print_report
    from workbench.commands.few_records import has_few_records

    # Here the report comes first, and then the exit code; a job's run of the notebook fails by itself.
    defaults = {} if notebook else {"on_wrong": "report"}
    parameters = _parameters(assignments, pipeline) | defaults
    show = None if as_json else print_report
    is_short = has_few_records(Home.find(), parameters)
    report = _run_notebook(notebook or "audit.py", parameters, KEYS, show, reads_little=is_short)
    if not report["ok"]:
        context.exit(1)


@cli.command()
@click.argument("pipeline")
@topic_options
def init(pipeline: str, **options: str) -> None:
    """Write the configuration of a new PIPELINE, from its broker, its registry and a sample of its topic.

    Without --bootstrap the topic is on the broker of --env, or on the embedded one.
    """
    _init(Home.find(), make_request(pipeline, options))
    click.echo(f"next       topiclake plan {pipeline}")


def _init(home: Home, request: Request) -> None:
    from workbench.commands.init import create_pipeline

    activity = Activity()
    with activity.during(f"reading a sample of topic {request.topic}"):
        created = create_pipeline(home, request)
    sample = created.sample
    activity.report(
        f"topic      {request.topic}: {sample.records:,} records in {sample.partitions} partitions"
    )
    activity.report(f"sample     {created.proposal.evidence}")
    for key, (value, _) in created.proposal.keys.items():
        activity.report(f"{key:<10} {value}")
    for file in created.files:
        activity.report(f"written    {file}")


@cli.command()
@click.argument("package")
@click.option(
    "--pipeline", default="", help="The pipeline whose rows it transforms; by default your only one."
)
def new(package: str, pipeline: str) -> None:
    """Write a PACKAGE of your own: a transform of rows, a notebook, a job and a test."""
    from workbench.commands.new import NOTEBOOK, create_package, own_pipeline

    home = Home.find()
    for file in create_package(home, package, pipeline or own_pipeline(home)):
        click.echo(f"written    {file}")
    # The project may be the copy of a wheel, which is not the working folder.
    notebook = home.project / NOTEBOOK.format(package=package)
    click.echo(f"next       topiclake run {shlex.quote(str(notebook))}")


@cli.command()
@click.argument("pipeline", default="")
@assignment_option
@click.option("--json", "as_json", is_flag=True, help="Print the counts and the audit as JSON.")
@topic_options
def ingest(pipeline: str, assignments: tuple[str, ...], as_json: bool, **options: str) -> None:
    """Ingest the topic of PIPELINE, conf/pipelines/<PIPELINE>.yaml, into its table, and audit it.

    With --topic and without such a file, `init` writes it first. An existing file must agree with --topic and
    --into; --env is the parameter `env` of the run.
    """
    from workbench.commands.few_records import has_few_records
    from workbench.commands.ingest import KEYS, print_run
    from workbench.commands.init import require_same

    home = Home.find()
    pipeline = pipeline or options["topic"]
    if not pipeline:
        raise click.UsageError("name a PIPELINE of conf/pipelines, or a --topic")
    env = [f"env={options['env']}"] if options["env"] else []
    parameters = _parameters([*assignments, *env], pipeline)
    if pipeline in pipeline_names(home.project / "conf"):
        require_no_options(options, ("topic", "into", "env"), "for a new pipeline")
        require_same(home, pipeline, options["topic"], options["into"])
    elif options["topic"]:
        _init(home, make_request(pipeline, options))
    show = None if as_json else partial(print_run, pipeline=pipeline)
    is_short = has_few_records(home, parameters)
    _run_notebook("ingest.py", parameters, KEYS, show, reads_little=is_short)


@cli.command()
@click.argument("pipeline")
@assignment_option
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.pass_context
def plan(context: click.Context, pipeline: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show what the next ingest of PIPELINE would do; exit 2 if it would do something. It changes nothing."""
    from workbench.commands.plan import CHANGES, KEYS, print_plan

    show = None if as_json else print_plan
    result = _run_notebook("plan.py", _parameters(assignments, pipeline), KEYS, show, reads_little=True)
    if result["has_changes"]:
        context.exit(CHANGES)


@cli.command()
@click.argument("pipeline")
@click.option("--sql", default="", help="A query of the pipeline's view, in place of all columns.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=0), help="Number of rows.")
@assignment_option
@click.option("--json", "as_json", is_flag=True, help="Print {table, records, rows}.")
def show(pipeline: str, sql: str, limit: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show rows of the table of PIPELINE."""
    from workbench.commands.show import KEYS, print_rows

    parameters = _parameters(assignments, pipeline) | {"sql": sql, "limit": str(limit)}
    _run_notebook("query.py", parameters, KEYS, None if as_json else print_rows, reads_little=not sql)


@cli.command()
@click.argument("pipeline")
@click.option(
    "--retention-days",
    type=click.FloatRange(min=0),
    help="Days that the table keeps a deletion. By default those of the pipeline, else 30.",
)
@assignment_option
@click.option("--json", "as_json", is_flag=True, help="Print {table, removed}.")
def purge(pipeline: str, retention_days: float | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Remove old deletions from the table of PIPELINE, which has `apply: upsert`."""
    from workbench.commands.purge import KEYS, print_removed

    days = "" if retention_days is None else str(retention_days)
    parameters = _parameters(assignments, pipeline) | {"retention_days": days}
    _run_notebook("purge.py", parameters, KEYS, None if as_json else print_removed)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("topic")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF kafka-console-consumer]")
@click.option("--avro", is_flag=True, help="Values are Confluent-framed Avro: print them as JSON.")
@click.option("--avro-keys", is_flag=True, help="Keys are Avro, too: print both as JSON.")
@click.option(
    "-p", "--parameter", "assignments", multiple=True, metavar="NAME=VALUE", help="For example env=azure."
)
def consume(
    topic: str, options: tuple[str, ...], avro: bool, avro_keys: bool, assignments: tuple[str, ...]
) -> None:
    """Print a topic's records as they come, until Ctrl-C: Kafka's own console consumer, which knows conf/.

    All its options may follow, such as --from-beginning, --max-messages 3, --property print.offset=true.
    """
    from workbench.commands.console_consumer import consume

    consume(Home.find(), topic, options, parse_parameters(assignments), avro=avro, avro_keys=avro_keys)


@cli.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help="By default the port of the last start, or a free one."
)
@click.option(
    "--listen",
    type=IPv4Address,
    default=HOST,
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; 0.0.0.0 means all addresses, for a container that publishes the port.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def dashboard(port: int | None, listen: IPv4Address, no_browser: bool) -> None:
    """Show every streaming query live, until Ctrl-C: rates, lag, rows, quarantine, errors."""
    from workbench.dashboard.serving import serve

    serve(Home.find(), port=port or 0, listen=listen, browser=not no_browser)


@cli.command()
def demo() -> None:
    """Publish real GPS tracks, run the main job on them, and show what arrived."""
    from workbench.commands.demo import run_demo

    run_demo(Home.find(), Activity())


@cli.command()
def jars() -> None:
    """Fetch the jars of Spark and the services where they are missing, and print their folder."""
    click.echo(fetch_jars(Activity().report))


@cli.command()
@click.argument("service", type=click.Choice((*SERVICE_NAMES, *MORE_LOGS, "spark")), required=False)
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(min=0), help="Last lines.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until Ctrl-C.")
def logs(service: str | None, lines: int, follow: bool) -> None:
    """Print the last lines of the services' logs, or of the notebooks' Spark."""
    home = Home.find()
    paths = [home.log(name) for name in ([service] if service else SERVICE_NAMES)]
    for line in log_files.read(paths, lines, follow):
        click.echo(line)


@cli.command()
def down() -> None:
    """Stop the services; their data stays."""
    stopped = services.down(Home.find(), Activity().report)
    click.echo(f"stopped: {', '.join(stopped)}" if stopped else "no service was running")


@cli.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(yes: bool) -> None:
    """Stop the services and delete what the workbench keeps: topics, schemas, tables, logs and runs."""
    home = Home.find()
    entries = home.own_entries()
    if not entries:
        click.echo(f"nothing to delete in {home.folder}")
        return
    click.echo(f"to be deleted in {home.folder}:")
    for path in entries:
        click.echo(f"  {path.name:<12} {folder_bytes(path) / 1e6:10.1f} MB")
    if not yes and not click.confirm("stop the services and delete this?"):
        raise click.Abort
    from workbench.jobs.background import stop_scheduler

    stop_scheduler(home)
    services.down(home, Activity().report)
    home.clear()
    click.echo("deleted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 1 for an error and for wrong arguments, 130 for Ctrl-C."""
    processes.treat_sigterm_as_ctrl_c()
    # A browser that the demo's dashboard opens is no service, which `down` would stop.
    os.environ.pop(processes.HOME_MARK, None)
    name = "topiclake" if Path(sys.argv[0]).stem == "topiclake" else "python -m workbench"
    try:
        code = cli.main(args=arguments, prog_name=name, standalone_mode=False)
    except TopiclakeError as error:
        click.echo(f"✗ {error}", err=True)
        return 1
    except click.ClickException as error:
        # Not click's 2, which is the exit code of a plan with changes.
        error.show()
        return 1
    except click.Abort as abort:
        interrupted = isinstance(abort.__cause__, KeyboardInterrupt)
        click.echo("✗ interrupted" if interrupted else "✗ aborted: nothing was changed", err=True)
        return 130 if interrupted else 1
    except KeyboardInterrupt:
        click.echo("✗ interrupted", err=True)
        return 130
    except OSError as error:
        click.echo(f"✗ {_storage_error(error)}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _storage_error(error: OSError) -> StorageError:
    """Return the sentence of an error of the disk that no other module expects."""
    file = f"{error.filename}: " if error.filename else ""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError(
        f"{file}{error.strerror or error}",
        "free space, or set WORKBENCH_HOME and TMPDIR to a larger disk" if is_full else "check this file",
        file=error.filename,
    )


def _run_notebook(
    notebook: str | Path,
    parameters: Mapping[str, str],
    keys: Set[str],
    show: Callable[[Console, Mapping[str, Any]], None] | None,
    *,
    reads_little: bool = False,
) -> Mapping[str, Any]:
    """Run a notebook of the project, print its exit value by `show` or as JSON, and return it.

    One that reads little gets a JVM with a short life.
    """
    from rich.console import Console

    from workbench.runner.run import run_for_value

    home = Home.find()
    environment = short_lived() if reads_little else {}
    value = run_for_value(home.project / "notebooks" / notebook, parameters, home, keys, environment)
    if show is None:
        click.echo(json.dumps(value, indent=2))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = max(console.width, _PIPE_COLUMNS)
        show(console, value)
    return value


def _parameters(assignments: Sequence[str], pipeline: str) -> dict[str, str]:
    return parse_parameters(assignments) | ({"pipeline": pipeline} if pipeline else {})


def _failure(status: ServiceStatus) -> str:
    return f"crashed: {status.detail}" if status.state == "crashed" else f"not answered: {status.detail}"
