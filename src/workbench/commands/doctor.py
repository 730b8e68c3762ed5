"""Check what a machine needs for the workbench, and name the command that fixes each problem."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from topiclake.errors import TopiclakeError
from workbench.host import ports
from workbench.host.home import Home
from workbench.host.installation import clone, jars_folder
from workbench.host.jar_lock import read_sums
from workbench.host.java import require_java
from workbench.services import control as services
from workbench.services.service import ServiceStatus

GIB = 1024**3
MEMORY_BYTES = 3 * GIB
DISK_BYTES = 3 * GIB
MINIMUM_PYTHON = (3, 10)
#: The modules of jars/ with classes of this project.
OWN_JARS = ("console", "store", "values")


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        check: Its name.
        ok: Whether the workbench can run.
        detail: The value that the check measured, or the problem that it found.
        remedy: The command that fixes it; empty if there is nothing to fix.
    """

    check: str
    ok: bool
    detail: str
    remedy: str = ""


def diagnose(home: Home) -> list[Check]:
    """Run every check; none of them changes anything but the state folder, which is created."""
    return [
        check_java(),
        check_python(sys.version_info[:3]),
        check_memory(psutil.virtual_memory().available),
        check_disk(home),
        check_ports(home),
        check_jars(jars_folder()),
        check_packages(*needed_packages()),
        *check_services(home),
    ]


def check_java() -> Check:
    """Check that Java 17 or newer is installed."""
    try:
        java = require_java()
    except TopiclakeError as error:
        return Check("java", False, error.cause, error.remedy)
    return Check("java", True, f"Java {java.version} at {java.path}")


def check_python(version: tuple[int, ...]) -> Check:
    """Check the version of this Python."""
    ok, text = version >= MINIMUM_PYTHON, ".".join(map(str, version))
    return Check("python", ok, f"Python {text}", "" if ok else "make setup PYTHON=python3.12")


def check_memory(available_bytes: int) -> Check:
    """Check that the JVMs of broker, registry and Spark fit into the memory that is available."""
    ok = available_bytes >= MEMORY_BYTES
    detail = f"{available_bytes / GIB:.1f} GB available, {MEMORY_BYTES // GIB} GB needed"
    return Check("memory", ok, detail, "" if ok else "end other programs, or python -m workbench down")


def check_disk(home: Home) -> Check:
    """Check that the state folder can be written and has room."""
    try:
        home.prepare()
    except TopiclakeError as error:
        return Check("disk", False, error.cause, error.remedy)
    free = shutil.disk_usage(home.folder).free
    ok = free >= DISK_BYTES
    detail = f"{free / GIB:.1f} GB free in {home.folder}, {DISK_BYTES // GIB} GB needed"
    return Check("disk", ok, detail, "" if ok else "WORKBENCH_HOME=<a folder on a larger disk>")


def check_ports(home: Home) -> Check:
    """Check that a loopback port is free, and that the ports of running services answer."""
    try:
        ports.choose(["probe"], {})
    except OSError as error:
        return Check(
            "ports", False, f"no port of {ports.HOST} can be had ({error.strerror})", "ip link set lo up"
        )
    state = home.load()
    alive = {running.name for running in services.status(home) if running.pid}
    silent = [
        f"{name} {state.ports[name]}"
        for service in (*services.default_services(home), *services.extras_of(home, state.extras))
        if service.name in alive
        for name in service.port_names
        if name in state.ports and not ports.answers(state.ports[name])
    ]
    if silent:
        remedy = "python -m workbench down && python -m workbench up"
        return Check("ports", False, f"nothing answers on {', '.join(silent)}", remedy)
    recorded = ", ".join(f"{name} {port}" for name, port in sorted(state.ports.items()))
    return Check("ports", True, f"recorded: {recorded}" if recorded else f"free ports on {ports.HOST}")


def check_jars(folder: Path) -> Check:
    """Check that every jar of the lock has been fetched, and that those of this project have been built."""
    remedy = "make jars" if clone() else "python -m workbench jars"
    if not folder.is_dir():
        return Check("jars", False, "not fetched yet", remedy)
    expected = listed_jars(folder)
    missing = [str(jar.relative_to(folder.parent)) for jar in expected if not jar.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return Check("jars", False, f"missing: {', '.join(missing[:3])}{more}", remedy)
    return Check("jars", True, f"all {len(expected)} fetched")


def listed_jars(folder: Path) -> list[Path]:
    """Return where each jar has to be below the folder of the jars."""
    own_jars = [f"{name}/target/jars/topiclake-{name}-1.jar" for name in OWN_JARS]
    return [folder / path for path in (*own_jars, *read_sums(folder))]


def check_packages(needed: Sequence[Requirement], remedy: str) -> Check:
    """Check that Python packages are installed in a version that fits."""
    mismatches = []
    for package in needed:
        installed = _installed(package.name)
        if installed is None or not package.specifier.contains(installed, prereleases=True):
            version = str(package.specifier).removeprefix("==")
            mismatches.append(f"{package.name} {installed or 'is missing'} instead of {version}")
    if mismatches:
        more = f" and {len(mismatches) - 3} more" if len(mismatches) > 3 else ""
        return Check("packages", False, f"{'; '.join(mismatches[:3])}{more}", remedy)
    return Check("packages", True, f"all {len(needed)} fit")


def needed_packages() -> tuple[list[Requirement], str]:
    """Return the packages that a clone pins, else the needs of the wheel; and the command to install them."""
    folder = clone()
    if folder and (lock := folder / "requirements.txt").is_file():
        return locked_packages(lock), "make setup"
    extras = metadata.metadata("topiclake").get_all("Provides-Extra", ())
    needed = metadata.requires("topiclake") or ()
    return _for_this_python(needed, ("", *extras)), "pip install 'topiclake[workbench]'"


def locked_packages(requirements: Path) -> list[Requirement]:
    """Return the packages that a requirements file pins for this Python."""
    lines = re.findall(r"^\w[^\n\\]+", requirements.read_text("utf-8"), re.MULTILINE)
    return _for_this_python(lines, ("",))


def _for_this_python(lines: Iterable[str], extras: Sequence[str]) -> list[Requirement]:
    return [
        package
        for package in map(Requirement, lines)
        if package.marker is None or any(package.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def check_services(home: Home) -> list[Check]:
    """Check each service: one that runs or was stopped is right, one that crashed or is silent is not."""
    return [_service_check(service) for service in services.status(home)]


def _service_check(service: ServiceStatus) -> Check:
    if service.state == "running":
        return Check(service.name, True, f"running at {service.address}")
    if service.state == "stopped":
        return Check(service.name, True, "not running (start: python -m workbench up)")
    remedy = "python -m workbench up" if service.state == "crashed" else "python -m workbench down"
    return Check(service.name, False, f"{service.state}: {service.detail} (log: {service.log})", remedy)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
