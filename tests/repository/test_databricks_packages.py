"""`pip install topiclake` on Databricks replaces no package of the runtime, by the runtime's dated lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
LISTS = sorted((Path(__file__).parent / "data" / "databricks").glob("*.txt"))
#: The Python of all runtimes in the lists.
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.3", "extra": ""}


def listed(text: str) -> dict[str, str]:
    """Package → its version in a runtime."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def base_install() -> list[Requirement]:
    """What the project needs without extras."""
    text = (PROJECT / "pyproject.toml").read_text()
    lines = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    return [Requirement(line) for line in re.findall(r'"(.+?)"', lines)]


def of_installed(name: str) -> list[Requirement]:
    """What a package needs, in the version that the tests run on."""
    found = [Requirement(text) for text in requires(name) or []]
    return [need for need in found if need.marker is None or need.marker.evaluate(PYTHON)]


def replaced(
    needs: Iterable[Requirement],
    runtime: Mapping[str, str],
    needs_of: Callable[[str], Iterable[Requirement]] = of_installed,
) -> list[str]:
    """Packages of a runtime that pip would replace, for these or for a package that it adds."""
    found, waiting, seen = [], list(needs), set()
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if name in runtime:
            if not need.specifier.contains(runtime[name]):
                found.append(f"{name} {runtime[name]} does not fit {need}")
        elif name not in seen:
            seen.add(name)
            waiting += needs_of(name)
    return found


def test_there_are_lists_of_clusters_and_serverless() -> None:
    assert {"18.x-scala2.13", "serverless-5"} <= {path.stem for path in LISTS}
    for path in LISTS:
        text = path.read_text()
        assert len(listed(text)) > 150
        assert re.search(
            r"^# Versions of github\.com/\S+, \S+, commit [0-9a-f]{40}, read on 20\d\d-", text, re.M
        )


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_the_base_install_replaces_no_package_of_the_runtime(path: Path) -> None:
    needs = base_install()
    assert {"pydantic", "requests", "fastavro"} <= {need.name for need in needs}
    assert replaced(needs, listed(path.read_text())) == []


def of_extra(name: str) -> list[Requirement]:
    """What an extra adds."""
    found = [Requirement(text) for text in requires("topiclake") or []]
    with_marker = [need for need in found if need.marker is not None]
    return [need for need in with_marker if need.marker.evaluate(PYTHON | {"extra": name})]


def test_the_page_names_the_packages_that_extras_replace() -> None:
    page = (PROJECT / "docs" / "databricks.md").read_text()
    sentence = page.partition("Some extras replace packages:")[2].partition("\n\n")[0]
    named = {extra: set(names.split(", ")) for extra, names in re.findall(r"`(\w+)` \((.+?)\)", sentence)}
    found: dict[str, set[str]] = {}
    # Databricks has Spark, and the workbench is for other machines.
    for extra in set(metadata("topiclake").get_all("Provides-Extra") or []) - {"spark", "workbench"}:
        for path in LISTS:
            for text in replaced(of_extra(extra), listed(path.read_text())):
                found.setdefault(extra, set()).add(text.split()[0])
    assert named == found


def test_a_package_that_would_be_replaced_is_named() -> None:
    runtime = {"pydantic": "2.10.6", "idna": "3.7"}
    assert replaced([Requirement("pydantic>=2.14,<3")], runtime) == [
        "pydantic 2.10.6 does not fit pydantic<3,>=2.14"
    ]
    added = {"httpx": [Requirement("idna>=3.8")]}
    assert replaced([Requirement("httpx")], runtime, added.__getitem__) == ["idna 3.7 does not fit idna>=3.8"]
