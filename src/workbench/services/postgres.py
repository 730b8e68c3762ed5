"""A real PostgreSQL, whose log Debezium can read."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topiclake.errors import DatabaseError, PlatformError
from workbench.host.files import replace_private
from workbench.host.java import Java
from workbench.host.ports import HOST, answers
from workbench.host.processes import STOP_MARK, last_error_line
from workbench.host.program_cache import OnProgress
from workbench.services.service import Service

#: The package with PostgreSQL's programs. It has wheels for Python 3.10 to 3.12, not for Linux on ARM.
BUNDLE = "pgserver"
#: Debian's packages have a folder for each version here.
DEBIAN = Path("/usr/lib/postgresql")
USER, DATABASE = "topiclake", "shop"
#: Of all tables, also of those that are created later.
PUBLICATION = "dbz_publication"


@dataclass(frozen=True)
class Postgres(Service):
    """The PostgreSQL of a home, with a password that only this home knows."""

    name = "postgres"
    port_names = ("postgres",)

    def program(self, on_progress: OnProgress = lambda _: None) -> Path:
        """Return the server: of the package pgserver, else Debian's newest, else the one on the PATH.

        Raises:
            PlatformError: PostgreSQL is missing.
        """
        package = importlib.util.find_spec(BUNDLE)
        bundled = [Path(package.origin).parent / "pginstall" / "bin"] if package and package.origin else []
        debian = sorted(DEBIAN.glob("*/bin"), key=_version, reverse=True)
        folders = os.pathsep.join(map(str, (*bundled, *debian, os.environ.get("PATH", ""))))
        program = shutil.which("postgres", path=folders)
        if program is None:
            remedy = f"pip install {BUNDLE}, or apt-get install postgresql"
            raise PlatformError("PostgreSQL is missing", remedy, program="postgres")
        return Path(program)

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the URL of the database, without its login."""
        return f"postgresql://{HOST}:{ports['postgres']}/{DATABASE}"

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Make the password, and the database with its publication.

        Raises:
            PlatformError: PostgreSQL cannot run as this user.
            DatabaseError: The database cannot be made.
        """
        super().prepare(java, ports)
        if not self._password_file.exists():
            replace_private(self._password_file, secrets.token_urlsafe(30).encode("ascii"))
        if not self._data.exists():
            self._initialize()

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs the server."""
        settings = {
            "listen_addresses": HOST,
            "port": ports["postgres"],
            # A socket's path has a limit of 107 bytes, which a home may exceed.
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_wal_senders": 20,
            "max_replication_slots": 20,
            "shared_buffers": "32MB",
            # The system keeps what a killed process wrote.
            "fsync": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*_not_as_root(), str(self.program()), "-D", str(self._data), *options]

    def environment(self) -> dict[str, str]:
        """Return the signal that ends its connections; after SIGTERM it would wait for the clients."""
        return {STOP_MARK: "SIGINT"}

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Log in; return None if the server accepts the login, else the cause."""
        if not answers(ports["postgres"], seconds):
            return "nothing listens on its port"
        # Each start of a kernel imports this module, and few of them need psycopg, which takes 0.1 s.
        import psycopg

        try:
            psycopg.connect(self.conninfo(ports), connect_timeout=10).close()
        except psycopg.Error as error:
            return " ".join(str(error).split())
        return None

    def conninfo(self, ports: Mapping[str, int]) -> str:
        """Return the database and the login, as psycopg accepts them."""
        from psycopg.conninfo import make_conninfo

        login = {"user": USER, "password": self.password()}
        return make_conninfo(host=HOST, port=ports["postgres"], dbname=DATABASE, **login)

    def exports(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return the address and the login."""
        return {
            "WORKBENCH_POSTGRES": self.address(ports),
            "WORKBENCH_POSTGRES_USER": USER,
            "TOPICLAKE_SECRET_WORKBENCH_POSTGRES_PASSWORD": self.password(),
        }

    def password(self) -> str:
        """Return the password of the login."""
        return self._password_file.read_text("ascii")

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _initialize(self) -> None:
        # Into a separate folder first: an interrupted start leaves no database that looks whole.
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        login = ["-U", USER, f"--pwfile={self._password_file}", "--auth=scram-sha-256"]
        self._run("initdb", ["-D", str(new), *login, "--encoding=UTF8", "--locale=C", "--no-sync"])
        alone = ["--single", "-F", "-D", str(new)]
        self._run("postgres", [*alone, "postgres"], f"CREATE DATABASE {DATABASE}")
        publication = f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES"
        self._run("postgres", [*alone, "-c", "wal_level=logical", DATABASE], publication)
        new.rename(self._data)

    def _run(self, program: str, arguments: Sequence[str], sql: str = "") -> None:
        command = [*_not_as_root(), str(self.program().with_name(program)), *arguments]
        log = self.home.log(self.name)
        with log.open("ab") as output:
            done = subprocess.run(
                command, input=sql.encode(), stdout=output, stderr=output, check=False, timeout=120
            )
        if done.returncode:
            cause = f"PostgreSQL's {program} failed: {last_error_line(log)} (log: {log})"
            raise DatabaseError(cause, f"python -m workbench logs {self.name}", program=program)


def _version(folder: Path) -> int:
    return int(folder.parent.name) if folder.parent.name.isdecimal() else 0


def _is_root() -> bool:
    return os.geteuid() == 0


def _not_as_root() -> list[str]:
    """Return a command in front of PostgreSQL's programs, which refuse to run as root.

    In the user's namespace root has another number, and still owns its files.
    """
    if not _is_root():
        return []
    command = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]
    try:
        is_allowed = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_allowed = False
    if not is_allowed:
        raise PlatformError(
            "PostgreSQL refuses to run as root", "run the same command as another user", reason="root"
        )
    return command
