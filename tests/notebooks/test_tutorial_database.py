"""The cell of tutorial 2 that writes into a database: the rows are read back from a real server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.services import databases
from tests.support.tutorials import PROJECT, figures, shorten

#: The cells that the last one of them, the cell of the database, needs.
CELLS = (
    "Settings and storage",
    "Topic and folder of this run",
    "Hits to read",
    "Topiclake: hits, and rejected records",
    "Topiclake: one row per zip code",
)
EXIT_VALUE = '{"sent": sent, "in_database": len(in_database)}'


def project_with(server: databases.Server, folder: Path) -> dict[str, str]:
    """Make a project whose configuration has the database; return the variables with its login."""
    for name in ("conf", "notebooks", "data"):
        shutil.copytree(PROJECT / name, folder / name)
    shorten(folder / "notebooks" / "tutorials" / "02_hits.py", CELLS, EXIT_VALUE)
    (folder / "jars").symlink_to(PROJECT / "jars")
    login = {name: f"{{{{secrets/tutorial/{name}}}}}" for name in ("username", "password")}
    tls = {"ca_file": str(server.certificate.authority)} if server.certificate else {"tls": False}
    with (folder / "conf" / "base.yaml").open("a", encoding="utf-8") as file:
        file.write(yaml.safe_dump({"database": {"url": server.url} | login | tls}))
    return {
        "TOPICLAKE_SECRET_TUTORIAL_USERNAME": databases.USER,
        "TOPICLAKE_SECRET_TUTORIAL_PASSWORD": databases.PASSWORD,
    }


@pytest.mark.thorough("the sink has its tests in test_jdbc")
@pytest.mark.slow("five cells of a tutorial")
@pytest.mark.parametrize(
    "kind",
    [pytest.param("mariadb", marks=pytest.mark.root("Debian's mariadb-server-core")), "postgresql"],
)
def test_the_rows_of_the_database_are_read_back(kind, embedded, warm_jvm, tmp_path) -> None:
    _, addresses = embedded
    with databases.database(kind) as server:
        variables = project_with(server, tmp_path) | addresses.environment() | warm_jvm.environment()
        found = figures("02_hits", variables, project=tmp_path)
        (table,) = server.query(
            "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'tutorial_hits_________'"
        )
        (in_server,) = server.query(f"SELECT count(*), sum(count) FROM {table[0]}")
    assert found["in_database"] == in_server[0] == 9
    # Three of the records are cut off.
    assert in_server[1] == found["sent"] - 3
