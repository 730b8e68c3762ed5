"""MariaDB and PostgreSQL from Debian as child processes on loopback, each in a folder of its own.

Both refuse to run as root, so root starts them as the user `nobody`.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from workbench.certificates import make_certificate
from workbench.ports import HOST, answers, choose

START_SECONDS = 120
SYSTEM_TABLES = Path("/usr/share/mysql")
#: Its login and database; a password that would break a URL, a command and SQL, were it put into one.
USER, PASSWORD, DATABASE = "topic_user", "p@ss:/?#w'o\"r`d%s;--", "stats"


class Server:
    """A server that can be stopped, killed and started again on its port, with what it holds."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.port = choose([kind], {})[kind]
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
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
            self._process = None

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
        raise NotImplementedError

    def initialize(self) -> None:
        raise NotImplementedError


class MariaDb(Server):
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

    def is_ready(self) -> bool:
        try:
            self.connect().close()
        except pymysql.MySQLError:
            return False
        return True


class PostgreSql(Server):
    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": self.folder,
            "timezone": "Asia/Kolkata",
            "shared_buffers": "32MB",
            "deadlock_timeout": "100ms",
            "ssl": "on",
            "ssl_cert_file": self.certificate.certificate,
            "ssl_key_file": self.certificate.key,
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [_postgresql("postgres"), "-D", f"{self.folder}/data", *given]

    def initialize(self) -> None:
        secret = self.folder / "secret"
        secret.write_text(PASSWORD + "\n")
        init = [_postgresql("initdb"), "-D", f"{self.folder}/data", "-U", USER, f"--pwfile={secret}"]
        login = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        subprocess.run([*init, *login], check=True, capture_output=True, cwd="/", **_nobody())
        hidden = PASSWORD.replace("'", "''")
        reader = f"CREATE ROLE reader LOGIN PASSWORD '{hidden}'; GRANT pg_read_all_data TO reader;"
        alone = [_postgresql("postgres"), "--single", "-D", f"{self.folder}/data", "postgres"]
        sql = f"CREATE DATABASE {DATABASE};\n{reader}\n"
        subprocess.run(alone, input=sql.encode(), check=True, capture_output=True, cwd="/", **_nobody())

    def connect(self) -> Any:
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "dbname": DATABASE}
        return psycopg.connect(host=HOST, port=self.port, autocommit=True, **login, options="-c TimeZone=UTC")

    def is_ready(self) -> bool:
        ready = [_postgresql("pg_isready"), "-q", "-h", HOST, "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0


KINDS: dict[str, type[Server]] = {"mariadb": MariaDb, "postgresql": PostgreSql}


@contextmanager
def database(kind: str) -> Iterator[Server]:
    """Run a server with a database and a login, and one that may only read; nothing of it is left."""
    # Not pytest's folder, which only root may enter.
    with tempfile.TemporaryDirectory(prefix=f"topiclake_{kind}_") as name:
        folder = Path(name)
        _give(folder)
        server = KINDS[kind](folder, kind)
        server.initialize()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _give(folder: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")


def _nobody() -> dict[str, Any]:
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


def _postgresql(name: str) -> str:
    """Find a program of PostgreSQL; Debian keeps each version's in a folder of its own."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return _program(name, str(folders[-1]) if folders else "/usr/bin", "postgresql")


def _program(name: str, folder: str, package: str) -> str:
    program = shutil.which(name, path=f"{folder}:{os.environ.get('PATH', '')}")
    if program is None:
        raise AssertionError(f"this test needs {name}, which is missing; try: make databases, or {package}")
    return program
