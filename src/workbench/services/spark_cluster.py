"""A real Spark cluster on loopback: a master, and workers whose executors are separate processes."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from workbench.host.files import replace_private
from workbench.host.home import Home
from workbench.host.installation import spark_home
from workbench.host.java import Java
from workbench.host.ports import HOST, send_request
from workbench.services.service import JavaService

#: Names the master of a cluster, in place of a Spark within the driver's own JVM.
MASTER_VARIABLE = "WORKBENCH_SPARK_MASTER"
#: Names a file with settings that a driver of the cluster needs; they hold its secret.
PROPERTIES_VARIABLE = "WORKBENCH_SPARK_PROPERTIES"
#: PySpark reads arguments of spark-submit from this variable.
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
#: Requires the secret from every client, since the cluster runs programs as this user.
_AUTHENTICATE = "spark.authenticate"
#: Each application has a folder with its jars and the logs of its executors; it is deleted an hour after
#: the end of the application.
_CLEANUP = {"enabled": "true", "interval": "600", "appDataTtl": "3600"}


@dataclass(frozen=True)
class SparkMaster(JavaService):
    """The master of a home's cluster."""

    name = "spark-master"
    port_names = ("spark-master", "spark-master-page")

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the value of `spark.master`."""
        return f"spark://{HOST}:{ports['spark-master']}"

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Make the cluster's secret."""
        file = _properties_file(self.home)
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            settings = f"{_AUTHENTICATE} true\n{_AUTHENTICATE}.secret {secrets.token_urlsafe(30)}\n"
            replace_private(file, settings.encode())

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs the master."""
        port_options = ["--port", str(ports["spark-master"]), "--webui-port", str(ports["spark-master-page"])]
        program = ["org.apache.spark.deploy.master.Master", "--host", HOST, *port_options]
        # The other way to submit, over HTTP, which starts the driver on a worker.
        settings = {"spark.master.rest.enabled": "false"}
        return _command(self, java, settings, program)

    def environment(self) -> dict[str, str]:
        """Return what Spark's own scripts set, and the cluster's secret."""
        return _environment(self.home)

    def exports(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return where notebooks find the cluster, and its secret."""
        return {
            MASTER_VARIABLE: self.address(ports),
            PROPERTIES_VARIABLE: str(_properties_file(self.home).absolute()),
        }

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Ask the master for its state; return None if it accepts applications, else the cause."""
        page = _page(ports["spark-master-page"], seconds)
        if isinstance(page, str):
            return page
        return None if page.get("status") == "ALIVE" else f"it is {page.get('status')}"


@dataclass(frozen=True)
class SparkWorker(JavaService):
    """One worker of a home's cluster.

    Attributes:
        number: Distinguishes the workers of a home.
    """

    number: int

    @property
    def name(self) -> str:
        """Its name in commands, state and log file."""
        return f"spark-worker-{self.number}"

    @property
    def port_names(self) -> tuple[str, str]:
        """The ports it needs."""
        return self.name, f"{self.name}-page"

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the page of the worker."""
        return f"http://{HOST}:{ports[f'{self.name}-page']}"

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs the worker."""
        settings = {f"spark.worker.cleanup.{key}": value for key, value in _CLEANUP.items()}
        port_options = ["--port", str(ports[self.name]), "--webui-port", str(ports[f"{self.name}-page"])]
        # Executors of several notebooks: each needs 1 GB, and runs one task at once.
        size = ["--cores", "4", "--memory", "4g", "--work-dir", str(self.folder)]
        program = ["org.apache.spark.deploy.worker.Worker", "--host", HOST, *port_options, *size]
        master = SparkMaster(self.home).address(ports)
        return _command(self, java, settings, [*program, master])

    def environment(self) -> dict[str, str]:
        """Return what Spark's own scripts set, and the cluster's secret."""
        return _environment(self.home)

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Ask the master for its workers; return None if this worker is alive, else the cause."""
        page = _page(ports["spark-master-page"], seconds)
        if isinstance(page, str):
            return f"the master does not answer: {page}"
        alive = [worker["port"] for worker in page["workers"] if worker["state"] == "ALIVE"]
        return None if ports[self.name] in alive else "the master does not know it"


def cluster(home: Home) -> tuple[SparkMaster, SparkWorker, SparkWorker]:
    """Return the master and the two workers of a home."""
    return SparkMaster(home), SparkWorker(home, 1), SparkWorker(home, 2)


def submit_arguments(properties: str) -> str:
    """Return the value of `SUBMIT_ARGUMENTS` for a driver whose settings are in the file `properties`.

    Settings of a session would be on the command line of its JVM, which everybody can read.
    """
    return shlex.join(["--properties-file", properties, "pyspark-shell"])


def _scala() -> str:
    """Return the version of Scala that Spark's own jars name, such as 2.13."""
    (core,) = (spark_home() / "jars").glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").partition("-")[0]


def _command(service: JavaService, java: Java, settings: Mapping[str, str], program: list[str]) -> list[str]:
    settings = {_AUTHENTICATE: "true", **settings}
    properties = [f"-D{key}={value}" for key, value in settings.items()]
    return [
        str(java.path),
        *service.jvm_options("512m"),
        *properties,
        "-cp",
        f"{spark_home() / 'jars'}/*",
        *program,
    ]


def _environment(home: Home) -> dict[str, str]:
    settings = dict(line.split() for line in _properties_file(home).read_text("utf-8").splitlines())
    return {
        # Without it the pages would be open to other machines.
        "SPARK_LOCAL_IP": HOST,
        # By these a worker finds the jars of its executors.
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": _scala(),
        # So Spark itself hands it to executors: all users can read a command line.
        "_SPARK_AUTH_SECRET": settings[f"{_AUTHENTICATE}.secret"],
    }


def _properties_file(home: Home) -> Path:
    return home.folder / "spark" / "cluster.properties"


def _page(port: int, seconds: float) -> dict[str, Any] | str:
    """Return the JSON of the master's page, or the cause of the failure."""
    response = send_request(port, "GET", f"http://{HOST}:{port}/json/", seconds)
    if isinstance(response, str):
        return response
    try:
        response.raise_for_status()
        return dict(response.json())
    except requests.RequestException as error:
        return type(error).__name__
