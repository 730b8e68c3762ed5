"""README.md is true: its commands run, its links lead somewhere, its Python is the notebook's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.environment import without_workbench
from tests.support.pages import page_blocks

PROJECT = Path(__file__).resolve().parents[2]
README_PAGE = PROJECT / "README.md"
README = README_PAGE.read_text("utf-8")
PAGES = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("data/*.md")]


@pytest.fixture
def shell(tmp_path: Path):
    """Run a script as a new user would: in the project, with a home of its own."""

    def run(script: str, **variables: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=PROJECT,
            env=without_workbench() | {"WORKBENCH_HOME": str(tmp_path / "home")} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=420,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}"
        return done.stdout

    yield run
    run("source .venv/bin/activate; python -m workbench down")


def test_the_two_commands_come_first() -> None:
    assert page_blocks(README_PAGE, "bash")[0].splitlines() == ["make demo", "make test"]


def test_make_test_is_a_target_that_sets_itself_up(shell) -> None:
    # Running it here would run this test again.
    assert "pytest" in shell("make -n test")


@pytest.mark.thorough("the notebooks run in test_databricks, the services and the jobs in tests of theirs")
@pytest.mark.slow("services, a job of three notebooks, a query, and a demo")
def test_the_further_five_minutes_and_a_demo_after_them_run_as_they_are_written(shell, warm_jvm) -> None:
    printed = shell(page_blocks(README_PAGE, "bash")[2], **warm_jvm.environment())
    assert "✗" not in printed
    assert re.search(r"^exit value +3163$", printed, re.MULTILINE)
    # The demo adds to a table that exists, as a second demo does.
    shown = shell("make demo")
    assert "all 993 records of this run arrived" in shown
    assert re.search(rf"rows in the table\W+{3163 + 993:,}\b", shown)
    assert re.search(r"its streams, live: http://127\.0\.0\.1:\d+/\?token=\S+", shown)
    page = Path(re.search(r"executed notebook: (\S+\.html)", shown)[1])
    assert "GPS events from Kafka into a Delta table" in page.read_text("utf-8")


def test_the_commands_for_a_topic_stand_in_the_pages_whose_commands_are_tested() -> None:
    # test_guides.py runs those of your-topic.md. test_versions.py compares the version of the wheel.
    install, *commands = page_blocks(README_PAGE, "bash")[1].splitlines()
    assert install in page_blocks("installation.md", "bash")[0].splitlines()
    (tested,) = page_blocks("your-topic.md", "bash")
    assert commands == [line for line in tested.splitlines() if line in commands]
    assert [line.split()[1] for line in commands] == ["init", "plan", "ingest", "audit", "show"]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 100


def test_the_python_of_the_readme_stands_in_the_notebook() -> None:
    notebook = (PROJECT / "notebooks" / "gps_ingest.py").read_text("utf-8").splitlines()
    (shown,) = page_blocks(README_PAGE, "python")
    assert [line for line in shown.splitlines() if line not in notebook] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_a_command_is_never_only_shown() -> None:
    # Whatever the README tells to type stands in a block that the tests above execute.
    assert len(page_blocks(README_PAGE, "bash")) == 3
    assert not re.search(r"^```(sh|shell|console)?$\n\w+ ", README, re.MULTILINE)
    make, _, services = page_blocks(README_PAGE, "bash")
    executed = f"{make}{services}".splitlines()
    assert all(command.startswith(("make ", "python -m workbench ", "source ")) for command in executed)
