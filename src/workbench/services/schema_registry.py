"""A real schema registry: Apicurio, through Confluent's REST API, with its schemas in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from topiclake.errors import PlatformError
from workbench.host.installation import jars_folder
from workbench.host.java import Java
from workbench.host.ports import HOST, refusal
from workbench.services.service import JavaService


@dataclass(frozen=True)
class SchemaRegistry(JavaService):
    """The schema registry of a home."""

    name = "schema-registry"
    port_names = ("schema-registry",)

    @property
    def folder(self) -> Path:
        """Where the registry keeps its database."""
        return self.home.data / "registry"

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the URL of the Confluent REST API."""
        return f"http://{HOST}:{ports['schema-registry']}/apis/ccompat/v7"

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Create the data folder.

        Raises:
            PlatformError: The registry was not fetched.
        """
        self._jar()
        super().prepare(java, ports)

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs the registry."""
        # WRITE_DELAY: otherwise a schema is on the disk half a second after its id was returned. After a
        # crash in between, another schema would get the same id.
        url = f"jdbc:h2:file:{self.folder / 'registry'};WRITE_DELAY=0"
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(ports["schema-registry"]),
            "quarkus.http.access-log.enabled": "false",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": url,
            "apicurio.datasource.jdbc.initial-size": "1",
            "apicurio.datasource.jdbc.min-size": "1",
            "apicurio.ccompat.max-subjects": "100000",
            "apicurio.import.work-dir": str(self.home.tmp),
        }
        properties = [f"-D{key}={value}" for key, value in settings.items()]
        return [str(java.path), *self.jvm_options("512m"), *properties, "-jar", str(self._jar())]

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Ask the registry for its subjects; return None if it answers, else the cause."""
        return refusal(ports["schema-registry"], "GET", f"{self.address(ports)}/subjects", seconds)

    def _jar(self) -> Path:
        folder = jars_folder() / "schema-registry" / "target" / "registry"
        programs = sorted(folder.glob("apicurio-registry-app-*-runner.jar"))
        if not programs:
            raise PlatformError(
                f"the schema registry is not in {folder}", "python -m workbench doctor", folder=str(folder)
            )
        return programs[-1]
