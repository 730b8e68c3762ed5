"""Classification of a database's errors: a rejected row, a transient error, or a permanent one."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential_jitter

from topiclake.errors import DatabaseError
from topiclake.sinks.jdbc.connection import Database

#: Deadlock, lock wait, too many connections, shutdown, lost or no connection, killed: MariaDB, MySQL.
_MYSQL_TRANSIENT = frozenset(
    {"1020", "1040", "1053", "1152", "1158", "1159", "1160", "1161", "1205", "1213", "1317", "1927"}
    | {"2002", "2003", "2006", "2013", "2055", "4031"}
)
#: Connection, resources, shutdown (classes 08, 53, 57P); deadlock, serialization, lock timeout: PostgreSQL.
_POSTGRESQL_TRANSIENT = ("08", "53", "57P", "40P01", "40001", "55P03", "25P03")
#: Answers to a login of a PostgreSQL that starts or stops, or is full. They have no code.
_COMING_BACK = re.compile(r"the database system is|too many clients|connection slots|administrator command")
#: A row is rejected for a null, a length, a range, a character, a constraint or a trigger: MariaDB, MySQL.
_MYSQL_ROW = frozenset(
    {"1048", "1062", "1216", "1217", "1264", "1265", "1292", "1300", "1366", "1367", "1406", "1411"}
    | {"1441", "1451", "1452", "1644", "1690", "3140", "3819", "4025"}
)
#: Data exceptions, integrity, a key too long for the index, RAISE in a trigger: PostgreSQL.
_POSTGRESQL_ROW = ("22", "23", "54000", "P0001")
#: Remedies, by a pattern of the error's code or text.
_REMEDIES = {
    r"^(1045|1698|28\w+)$|FATAL: +(password|no pg_hba|role)": "correct the secrets of "
    "database.username and database.password",
    r"^(1049|1044|3D000)$|FATAL: +database": "run CREATE DATABASE or GRANT, or correct database.url",
    r"^(1142|1143|1227|1290|1370|42501|25006)$": "run GRANT SELECT, INSERT, UPDATE, DELETE, CREATE on "
    "it, on a server that allows writes",
    r"^(1146|42P01)$": "start again, which creates the missing table",
    r"(?i)certificate|ssl": "set database.ca_file to the authority of the server's certificate",
}

Answer = TypeVar("Answer")
_LOG = logging.getLogger(__name__)


def code(error: BaseException) -> str:
    """Return PostgreSQL's SQLSTATE or MariaDB's error number, or "" if the error has no code."""
    original = getattr(error, "orig", None)
    first = next(iter(getattr(original, "args", ())), None)
    # PyMySQL's errors have an SQLSTATE too, which says less than the number.
    return str(first if isinstance(first, int) else getattr(original, "sqlstate", None) or "")


def text(error: BaseException) -> str:
    """Return the database's message, without the statement and its values."""
    problem = getattr(error, "orig", None) or error
    return str(problem.args[-1] if problem.args else problem)


def is_of_a_row(error: DBAPIError) -> bool:
    """Return whether a database rejects values, not the statement."""
    error_code = code(error)
    return isinstance(error, DataError) or error_code in _MYSQL_ROW or _has_class(error_code, _POSTGRESQL_ROW)


def is_transient(error: BaseException) -> bool:
    """Return whether the same transaction may succeed later."""
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    error_code = code(error)
    if (
        error.connection_invalidated
        or error_code in _MYSQL_TRANSIENT
        or _has_class(error_code, _POSTGRESQL_TRANSIENT)
    ):
        return True
    # psycopg's errors while it connects have no code; an answer of the server contains FATAL.
    connects = not error_code and type(error.orig).__name__ in ("OperationalError", "ConnectionTimeout")
    return connects and ("FATAL" not in text(error) or bool(_COMING_BACK.search(text(error))))


def _has_class(error_code: str, classes: tuple[str, ...]) -> bool:
    return len(error_code) == 5 and error_code.startswith(classes)


def persist(
    database: Database, subject: str, attempt: Callable[[], Answer], *, retry_seconds: float
) -> Answer:
    """Call `attempt`, a whole transaction, until the database commits it.

    Args:
        database: The database, for its errors.
        subject: The pipeline and the table, for the error.
        attempt: Called again after transient errors, such as deadlocks and outages.
        retry_seconds: Seconds until the last try; 0 for one try.

    Raises:
        DatabaseError: It is unavailable until `retry_seconds` is over, or refuses login, rights or statement.
    """

    def log(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        problem = database.without_login(text(error)) if error else ""
        _LOG.warning(
            "%s, %s: %s; next try in %.1f s", subject, database.address, problem, state.upcoming_sleep
        )

    repeated = Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_exponential_jitter(multiplier=0.2, max=15, jitter=1),
        stop=stop_before_delay(retry_seconds),
        before_sleep=log,
        reraise=True,
    )
    try:
        return repeated(attempt)
    except (DBAPIError, PoolTimeoutError) as error:
        raise failed(database, subject, error, retry_seconds) from None


def failed(database: Database, subject: str, error: BaseException, retry_seconds: float) -> DatabaseError:
    """Return the error for a database that refuses, with its message and a remedy."""
    problem, error_code = text(error), code(error)
    remedies = (
        remedy
        for pattern, remedy in _REMEDIES.items()
        if re.search(pattern, error_code) or re.search(pattern, problem)
    )
    remedy = next(remedies, "fix the database and start again: batches that were not written are repeated")
    gave_up = f"; gave up after {retry_seconds:.0f} s" if retry_seconds and is_transient(error) else ""
    message = database.without_login(problem)[:500] + (f" ({error_code})" if error_code else "")
    return DatabaseError(
        f"{subject}, {database.address}: {message}{gave_up}",
        remedy,
        server=database.address,
        code=error_code,
        detail=database.without_login(problem)[:500],
    )
