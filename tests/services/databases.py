"""MariaDB and PostgreSQL as child processes on loopback, each in a separate folder.

The package pgserver brings PostgreSQL without TLS. Debian's packages bring MariaDB and PostgreSQL with TLS.
Each server refuses to run as root, so root starts it as the user `nobody`.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil
import psycopg
import pymysql

from tests.support.waiting import wait_until
from workbench.host.certificates import Certificate, make_certificate
from workbench.host.ports import HOST, answers, choose

START_SECONDS = 120
#: The package with PostgreSQL's programs. It has wheels for Python 3.10 to 3.12, not for Linux on ARM.
BUNDLE = "pgserver"
SYSTEM_TABLES = Path("/usr/share/mysql")
#: Its login and database; a password that would break a URL, a command and SQL, were it put into one.
USER, PASSWORD, DATABASE = "topic_user", "p@ss:/?#w'o\"r`d%s;--", "stats"


class Server:
    """A server that can be stopped, killed and started again on its port, with what it holds.

    Attributes:
        kind: The database's name in a URL.
        has_tls: Whether the server accepts connections with TLS.
        certificate: The server's certificate, or None without TLS.
    """

    kind: ClassVar[str]
    has_tls: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = choose([self.kind], {})[self.kind]
        self.certificate: Certificate | None = None
        if self.has_tls:
            self.certificate = make_certificate(folder / "tls", HOST)
            for file in (folder / "tls").iterdir():
                _give(file)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"jdbc:{self.kind}://{HOST}:{self.port}/{DATABASE}"

    @property
    def output(self) -> Path:
        return self.folder / "output.log"

    def start(self) -> None:
        with self.output.open("ab") as file:
            self._process = subprocess.Popen(self.command(), stdout=file, stderr=file, cwd="/", **_nobody())
        deadline = time.monotonic() + START_SECONDS
        while not (answers(self.port) and self.is_ready()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.kind} does not answer: {self.output.read_text()[-3000:]}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, as a crash does, or cleanly."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        # PostgreSQL's other processes end after the first one; until then they hold its shared memory.
        others = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
        process.wait(START_SECONDS)
        wait_until(lambda: not any(map(_is_alive, others)), START_SECONDS)

    def connect(self) -> Any:
        """Return a connection of a user beside the sink, which commits each statement."""
        raise NotImplementedError

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement, and return its rows."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def quoted(self, name: str) -> str:
        mark = '"' if self.kind == "postgresql" else "`"
        return mark + name.replace(mark, 2 * mark) + mark

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Return whether the server accepts the login."""
        try:
            self.connect().close()
        except (pymysql.MySQLError, psycopg.Error):
            return False
        return True

    def initialize(self) -> None:
        raise NotImplementedError


class MariaDb(Server):
    """MariaDB from Debian, with TLS."""

    kind = "mariadb"

    def command(self) -> list[str]:
        here = [
            f"--datadir={self.folder}/data",
            f"--socket={self.folder}/socket",
            f"--pid-file={self.folder}/pid",
        ]
        network = [f"--bind-address={HOST}", f"--port={self.port}", "--skip-name-resolve"]
        # The session's own settings have to win over these.
        hostile = ["--sql-mode=ANSI_QUOTES", "--default-time-zone=+05:30", "--character-set-server=latin1"]
        small = ["--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=1", "--skip-log-bin"]
        program = _program("mariadbd", "/usr/sbin", "mariadb-server-core")
        init = ["--init-file=" + str(self.folder / "init.sql")]
        assert self.certificate is not None
        tls = [f"--ssl-cert={self.certificate.certificate}", f"--ssl-key={self.certificate.key}"]
        return [program, "--no-defaults", *here, *network, *hostile, *small, *tls, *init]

    def initialize(self) -> None:
        secret = PASSWORD.replace("'", "''")
        host = "'127.0.0.1'"
        (self.folder / "init.sql").write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
            f"CREATE USER IF NOT EXISTS {USER}@{host} IDENTIFIED BY '{secret}';\n"
            f"GRANT ALL ON {DATABASE}.* TO {USER}@{host};\n"
            # So that a test sees who waits for a lock.
            f"GRANT PROCESS ON *.* TO {USER}@{host};\n"
            f"CREATE USER IF NOT EXISTS reader@{host} IDENTIFIED BY '{secret}';\n"
            f"GRANT SELECT ON {DATABASE}.* TO reader@{host};\n"
        )
        # As mariadb-install-db does, which wants a program of another package.
        (self.folder / "data" / "mysql").mkdir(parents=True)
        for folder in (self.folder / "data", self.folder / "data" / "mysql"):
            _give(folder)
        tables = [SYSTEM_TABLES / f"mysql_{part}.sql" for part in ("system_tables", "performance_tables")]
        sql = b"USE mysql;\n" + b"\n".join(file.read_bytes() for file in tables)
        # A database's own user is made by the init file, each time it starts.
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [*self.command()[:-1], "--bootstrap", "--skip-networking", "--sql-mode="]
        subprocess.run(command, input=sql, check=True, cwd="/", **quiet, **_nobody())

    def connect(self) -> Any:
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE}
        session: dict[str, Any] = {
            "autocommit": True,
            "charset": "utf8mb4",
            "init_command": "SET sql_mode = ''",
        }
        return pymysql.connect(host=HOST, port=self.port, **login, **session)


class PostgreSql(Server):
    """PostgreSQL from the package pgserver, without TLS."""

    kind = "postgresql"
    has_tls = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.programs = self.find_programs()

    def find_programs(self) -> Path:
        """Return the folder of initdb and postgres.

        Debian's programs replace those of the package if it has no wheel for this Python or processor.
        """
        package = importlib.util.find_spec(BUNDLE)
        if package is None or package.origin is None:
            return _debian_postgresql()
        site = Path(package.origin).parents[1]
        if os.geteuid() == 0:
            # The package may be in a folder that only root can enter.
            site = _copy_bundle(site, self.folder / "programs")
        return site / BUNDLE / "pginstall" / "bin"

    def command(self) -> list[str]:
        settings: dict[str, object] = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": self.folder,
            "timezone": "Asia/Kolkata",
            "shared_buffers": "32MB",
            "deadlock_timeout": "100ms",
            # The system keeps what a killed process wrote, without fsync.
            "fsync": "off",
        }
        if self.certificate is not None:
            files: dict[str, object] = {
                "ssl_cert_file": self.certificate.certificate,
                "ssl_key_file": self.certificate.key,
            }
            settings |= files | {"ssl": "on"}
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self.program("postgres"), "-D", f"{self.folder}/data", *given]

    def initialize(self) -> None:
        secret = self.folder / "secret"
        secret.write_text(PASSWORD + "\n")
        init = [self.program("initdb"), "-D", f"{self.folder}/data", "-U", USER, f"--pwfile={secret}"]
        login = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        _run([*init, *login])
        hidden = PASSWORD.replace("'", "''")
        reader = f"CREATE ROLE reader LOGIN PASSWORD '{hidden}'; GRANT pg_read_all_data TO reader;"
        alone = [self.program("postgres"), "--single", "-F", "-D", f"{self.folder}/data", "postgres"]
        _run(alone, f"CREATE DATABASE {DATABASE};\n{reader}\n")

    def connect(self) -> Any:
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "dbname": DATABASE}
        return psycopg.connect(host=HOST, port=self.port, autocommit=True, **login, options="-c TimeZone=UTC")

    def program(self, name: str) -> str:
        return _program(name, str(self.programs), "postgresql")


class PostgreSqlTls(PostgreSql):
    """PostgreSQL from Debian, with TLS."""

    has_tls = True

    def find_programs(self) -> Path:
        return _debian_postgresql()


KINDS: dict[str, type[Server]] = {
    "mariadb": MariaDb,
    "postgresql": PostgreSql,
    "postgresql_tls": PostgreSqlTls,
}


@contextmanager
def database(kind: str) -> Iterator[Server]:
    """Run a server with a database and a login, and one that may only read; nothing of it is left."""
    # Not pytest's folder, which only root may enter.
    with tempfile.TemporaryDirectory(prefix=f"topiclake_{kind}_") as name:
        folder = Path(name)
        _give(folder)
        server = KINDS[kind](folder)
        server.initialize()
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _give(folder: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")


def _nobody() -> dict[str, Any]:
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


def _run(command: list[str], given: str = "") -> None:
    done = subprocess.run(
        command, input=given.encode(), capture_output=True, cwd="/", **_nobody(), check=False
    )
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, f"{command[0]} failed with exit code {done.returncode}: {output[-3000:]}"


def _copy_bundle(site: Path, target: Path) -> Path:
    """Copy the programs, and what they find by relative paths, into a folder of the user `nobody`."""
    unused = shutil.ignore_patterns("include", "*.a", "__pycache__")
    # The libraries' folder exists on Linux only.
    for folder in filter(Path.is_dir, (site / BUNDLE, site / f"{BUNDLE}.libs")):
        shutil.copytree(folder, target / folder.name, ignore=unused)
    for path in (target, *target.rglob("*")):
        _give(path)
    return target


def _debian_postgresql() -> Path:
    """Return the folder of the newest version's programs. Debian keeps a separate folder for each version."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return folders[-1] if folders else Path("/usr/bin")


def _program(name: str, folder: str, package: str) -> str:
    program = shutil.which(name, path=f"{folder}:{os.environ.get('PATH', '')}")
    if program is None:
        raise AssertionError(f"this test needs {name}, which is missing; try: make databases, or {package}")
    return program
