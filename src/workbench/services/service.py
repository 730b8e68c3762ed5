"""Embedded services: their commands, addresses and status."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workbench.host.home import HOME_VARIABLE, Home
from workbench.host.installation import jars_folder
from workbench.host.java import Java, more_options
from workbench.host.program_cache import OnProgress

#: Variable with the folder or the source of tables; `conf/local.yaml` names it.
DATALAKE_VARIABLE = "WORKBENCH_DATALAKE"
#: The JVM does not log that an archive does not fit.
UNLOGGED_ARCHIVE = ("-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class*=off")


@dataclass(frozen=True)
class Service(ABC):
    """A program that a home runs, such as `KafkaBroker` and `S3Gateway`.

    Attributes:
        home: The home with its data, its log and the record of its start.
    """

    home: Home

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in commands, state and log file."""

    @property
    @abstractmethod
    def port_names(self) -> Sequence[str]:
        """The ports it needs."""

    @property
    def folder(self) -> Path:
        """Where it keeps its data."""
        return self.home.data / self.name

    def program(self, on_progress: OnProgress) -> Path | None:
        """Return its program, fetched if it is missing; None if the service runs from the jars."""
        return None

    @abstractmethod
    def address(self, ports: Mapping[str, int]) -> str:
        """Return where clients reach it."""

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Write what it needs before it starts."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @abstractmethod
    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs it."""

    def environment(self) -> dict[str, str]:
        """Return variables for its process; other users cannot read them, but could read a command line."""
        return {}

    @abstractmethod
    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Send a real request; return None if it is answered, else the cause."""

    def exports(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return the variables by which notebooks find it: its address and its credentials."""
        return {}


class JavaService(Service):
    """A service in a JVM, which finds its classes in an archive if there is one."""

    @property
    def class_archive(self) -> Path:
        """The archive of its classes, if it was made (`workbench.kernel.class_archive`)."""
        return jars_folder() / "target" / f"{self.name}.jsa"

    def jvm_options(self, heap: str) -> list[str]:
        """Return the options of its JVM, whose heap has a size such as `512m` at most."""
        archive = self.class_archive
        archived = [f"-XX:SharedArchiveFile={archive}", *UNLOGGED_ARCHIVE] if archive.exists() else []
        return [
            f"-Xmx{heap}",
            "-XX:-UsePerfData",  # else each JVM leaves a file in the system's temporary folder
            "-XX:+ExitOnOutOfMemoryError",
            f"-Djava.io.tmpdir={self.home.tmp}",
            *archived,
            *more_options(),
        ]


@dataclass(frozen=True)
class Addresses:
    """Where the running services are.

    Attributes:
        extras: The variables of additional services; they hold credentials.
    """

    home: Path
    kafka_bootstrap_servers: str
    schema_registry_url: str
    datalake: Path
    extras: Mapping[str, str] = field(default_factory=dict, repr=False)

    def environment(self) -> dict[str, str]:
        """Return the addresses as environment variables, for `conf/` and for child processes."""
        return {
            HOME_VARIABLE: str(self.home),
            "WORKBENCH_KAFKA": self.kafka_bootstrap_servers,
            "WORKBENCH_SCHEMA_REGISTRY": self.schema_registry_url,
            DATALAKE_VARIABLE: self.datalake.as_uri(),
            **self.extras,
        }


@dataclass(frozen=True)
class ServiceStatus:
    """The status of one service.

    Attributes:
        state: `silent` is a process that runs and does not answer; `crashed` one that ended unasked.
        detail: Why it is silent, or the last error line of its log.
    """

    name: str
    state: Literal["running", "silent", "stopped", "crashed"]
    address: str
    log: Path
    pid: int | None = None
    detail: str = ""
