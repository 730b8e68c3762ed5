"""Start, watch and stop the embedded services of a home."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from subprocess import Popen

from psutil import Process

from topiclake.errors import PlatformError
from workbench.host import ports as free_ports
from workbench.host import processes
from workbench.host.home import Home, State
from workbench.host.jars import fetch_jars
from workbench.host.java import require_java
from workbench.host.program_cache import OnProgress
from workbench.services.azurite import Azurite
from workbench.services.kafka_broker import KafkaBroker
from workbench.services.kafka_connect import KafkaConnect
from workbench.services.postgres import Postgres
from workbench.services.s3_gateway import S3Gateway
from workbench.services.schema_registry import SchemaRegistry
from workbench.services.service import (
    DATALAKE_VARIABLE,
    Addresses,
    JavaService,
    Service,
    ServiceStatus,
)
from workbench.services.spark_cluster import cluster

START_SECONDS = 120.0
_REPORT_SECONDS = 5.0
#: The services that `up --with` accepts.
EXTRAS: Mapping[str, Callable[[Home], Sequence[Service]]] = {
    "azure": lambda home: [Azurite(home)],
    "postgres": lambda home: [Postgres(home), KafkaConnect(home)],
    "s3": lambda home: [S3Gateway(home)],
    "spark": cluster,
}


def default_services(home: Home) -> tuple[JavaService, ...]:
    """Return the broker and the registry of a home."""
    return (KafkaBroker(home), SchemaRegistry(home))


def extras_of(home: Home, names: Sequence[str]) -> tuple[Service, ...]:
    """Return the services of what `up --with` was given."""
    return tuple(service for name in names if name in EXTRAS for service in EXTRAS[name](home))


def up(
    home: Home,
    on_progress: OnProgress = lambda _: None,
    extras: Sequence[str] = (),
) -> Addresses:
    """Start the services that do not run yet, wait until they answer, and return the addresses.

    Args:
        home: The home.
        on_progress: Is called with a line for each step.
        extras: Names of `EXTRAS` to start as well.

    Raises:
        PlatformError: Java, the jars or a store's program are missing, or a service died or did not answer
            in time.
        StorageError: The state folder cannot be written, or another command holds it.
    """
    fetch_jars(on_progress)
    names = sorted({*home.load().extras, *extras})
    more = extras_of(home, names)
    for service in more:
        service.program(on_progress)
    start_services(home, (*default_services(home), *more), on_progress)
    with home.lock():
        state = home.load()
        state.extras = names
        home.save(state)
    return _addresses(home, state)


def start_services(
    home: Home,
    services: Sequence[Service],
    on_progress: OnProgress = lambda _: None,
) -> dict[str, str]:
    """Start the given services at the same time; return the address of each by its name.

    An error or Ctrl-C stops what this call started, and leaves alone what ran before.

    Raises:
        PlatformError: See `up`.
    """
    with home.lock():
        state = home.load()
        running = _running(home, state)
        starting = [service for service in services if service.name not in running]
        try:
            started = _launch(home, state, starting, on_progress) if starting else {}
            _await(home, state, services, started, on_progress)
        except BaseException:
            _undo(home, state, [service.name for service in starting], on_progress)
            raise
    return {service.name: service.address(state.ports) for service in services}


def down(home: Home, on_progress: OnProgress = lambda _: None) -> list[str]:
    """Stop every service of the home, recorded or not; return the names of those that ran."""
    if not home.folder.exists():
        return []
    with home.lock():
        running = sorted(processes.running(home))
        if running:
            on_progress(f"stopping {', '.join(running)}")
        _stop(home, processes.marked(home))
        home.save(State(home.load().ports))
    return running


def status(home: Home, services: Sequence[Service] | None = None) -> list[ServiceStatus]:
    """Return the status of each service; send a real request to those that run."""
    state, running = home.load(), processes.running(home)
    chosen = services or (*default_services(home), *extras_of(home, state.extras))
    return [_status(home, state, service, running.get(service.name)) for service in chosen]


def addresses(home: Home) -> Addresses | None:
    """Return the addresses while broker and registry run and answer, else None."""
    if any(service.state != "running" for service in status(home, default_services(home))):
        return None
    return _addresses(home, home.load())


def environment(home: Home) -> dict[str, str]:
    """Return this process's variables, over those of the running services.

    Without running services, the only one is the folder of tables, which services of the user need, too.
    """
    running = addresses(home)
    started = running.environment() if running else {DATALAKE_VARIABLE: home.datalake.as_uri()}
    return started | os.environ


@contextmanager
def exported(home: Home) -> Iterator[None]:
    """Set the variables of the running services in this process, for files of conf/ that name them."""
    with processes.variables_set(environment(home)):
        yield


def _addresses(home: Home, state: State) -> Addresses:
    kafka, registry = (service.address(state.ports) for service in default_services(home))
    variables: dict[str, str] = {}
    running = _running(home, state)
    for service in extras_of(home, state.extras):
        if service.name in running:
            variables |= service.exports(state.ports)
    return Addresses(home.folder, kafka, registry, home.datalake, variables)


def _running(home: Home, state: State) -> set[str]:
    """Return the names of the services that run, and whose start was recorded."""
    return processes.running(home).keys() & state.processes


def _launch(
    home: Home, state: State, starting: Sequence[Service], on_progress: OnProgress
) -> dict[str, Popen[bytes]]:
    java = require_java()
    processes.await_killed()
    for service in starting:
        # A process without a record holds port and data: its command was killed before it wrote the record.
        processes.stop(processes.marked(home, service.name))
    names = [name for service in starting for name in service.port_names]
    other_ports = [port for name, port in state.ports.items() if name not in names]
    state.ports |= free_ports.choose(names, state.ports, other_ports)
    home.save(state)
    started = {}
    for service in starting:
        on_progress(f"{service.name}: starting")
        service.prepare(java, state.ports)
        variables = {**service.environment(), **processes.marks(home, service.name)}
        command = service.command(java, state.ports)
        started[service.name] = processes.start(command, home.log(service.name), home.logs, variables)
        state.processes = sorted({*state.processes, service.name})
        home.save(state)
    return started


def _await(
    home: Home,
    state: State,
    services: Sequence[Service],
    started: Mapping[str, Popen[bytes]],
    on_progress: OnProgress,
) -> None:
    begin = reported = time.monotonic()
    waiting = list(services)
    while waiting:
        running = processes.running(home)
        for service in tuple(waiting):
            process = started.get(service.name)
            # While a process executes another program, as `unshare` does, the kernel hides its environment.
            if service.name not in running and (process is None or process.poll() is not None):
                raise _start_error(home, service, process)
            if service.problem(state.ports) is None:
                waiting.remove(service)
                seconds = time.monotonic() - begin
                on_progress(f"{service.name}: ready at {service.address(state.ports)} after {seconds:.1f} s")
        elapsed = time.monotonic() - begin
        if waiting and elapsed > START_SECONDS:
            raise _late(home, state, waiting[0])
        if waiting and time.monotonic() - reported > _REPORT_SECONDS:
            reported = time.monotonic()
            on_progress(f"waiting for {', '.join(missing.name for missing in waiting)} ({elapsed:.0f} s)")
        time.sleep(0.1 if waiting else 0)


def _start_error(home: Home, service: Service, process: Popen[bytes] | None) -> PlatformError:
    code = processes.exit_code(process) if process else None
    ended = "ended" if code is None else f"ended with exit code {code}"
    log = home.log(service.name)
    cause = f"{service.name} {ended} while it started: {processes.last_error_line(log)} (log: {log})"
    return PlatformError(cause, f"python -m workbench logs {service.name}", service=service.name)


def _late(home: Home, state: State, service: Service) -> PlatformError:
    problem, log = service.problem(state.ports), home.log(service.name)
    cause = f"{service.name} did not answer within {START_SECONDS:.0f} s ({problem}; log: {log})"
    return PlatformError(cause, f"python -m workbench logs {service.name}", service=service.name)


def _undo(home: Home, state: State, names: Sequence[str], on_progress: OnProgress) -> None:
    running = [process for name in names for process in processes.marked(home, name)]
    if running:
        on_progress(f"stopping {', '.join(names)}")
    _stop(home, running)
    state.processes = [name for name in state.processes if name not in names]
    home.save(state)


def _stop(home: Home, running: Sequence[Process]) -> None:
    """Stop services, broker and registry last: Kafka Connect waits for an unavailable broker."""
    last = {service.name for service in default_services(home)}
    processes.stop([process for process in running if processes.service_of(process) not in last])
    processes.stop(running)


def _status(home: Home, state: State, service: Service, process: Process | None) -> ServiceStatus:
    name, log = service.name, home.log(service.name)
    if name not in state.processes:
        detail = "it has no record" if process else ""
        return ServiceStatus(name, "silent" if process else "stopped", "", log, detail=detail)
    address = service.address(state.ports)
    if process is None:
        return ServiceStatus(name, "crashed", address, log, detail=processes.last_error_line(log))
    problem = service.problem(state.ports)
    return ServiceStatus(name, "silent" if problem else "running", address, log, process.pid, problem or "")
