"""One place for versions: requirements.txt for Python, jars/pom.xml for the JVM; all else agrees."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = {
    name: (ROOT / name).read_text("utf-8")
    for name in [
        "requirements.txt",
        "requirements-dev.txt",
        "pyproject.toml",
        "jars/pom.xml",
        "jars/spark/pom.xml",
        "docker-compose.yaml",
        "deploy/spark/Dockerfile",
        "deploy/kubernetes/Dockerfile",
        "deploy/kubernetes/taxi-publish.yaml",
        "deploy/kubernetes/taxi-archive.yaml",
        "docs/databricks.md",
        "docs/installation.md",
        "docs/change-data-source.md",
        "docs/kubernetes.md",
        "Makefile",
        "CONTRIBUTING.md",
    ]
}
DATABRICKS = sorted((ROOT / "tests" / "repository" / "data" / "databricks").glob("*.txt"))
POMS = {path.parent.name: path.read_text("utf-8") for path in sorted(ROOT.glob("jars/*/pom.xml"))}
#: What Maven itself defines.
BUILT_IN = ("project.",)


def locked(requirements: str) -> dict[str, list[str]]:
    """Requirement → its options; the lines of one requirement end in a backslash, but the last."""
    joined = re.sub(r" *\\\n *", " ", requirements).splitlines()
    lines = [re.split(r" (?=--)", line) for line in joined if line and not line.startswith("#")]
    return {line[0]: line[1:] for line in lines}


def pins(requirements: str) -> dict[str, list[str]]:
    """Package → its versions, of which each Python gets one."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", requirements, re.MULTILINE):
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


def unlocked(requirements: str) -> list[str]:
    """Requirements without an exact version or without hashes."""
    return [
        requirement
        for requirement, options in locked(requirements).items()
        if not re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", requirement)
        or not options
        or not all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in options)
    ]


def elements(pom: str) -> ElementTree.Element:
    """The pom without its namespace."""
    return ElementTree.fromstring(re.sub(r'\sxmlns="[^"]+"', "", pom, count=1))


def properties(pom: str) -> dict[str, str]:
    return {entry.tag: (entry.text or "") for entry in elements(pom).iterfind("./properties/*")}


def disagreements(files: dict[str, str]) -> list[str]:
    """Sentences that name two files whose versions differ."""
    python, jvm = pins(files["requirements.txt"]), properties(files["jars/pom.xml"])
    scala = jvm["scala.binary.version"]
    spark_series = ".".join(jvm["spark.version"].split(".")[:2])
    version = re.search(r'^version = "(.+)"$', files["pyproject.toml"], re.MULTILINE)
    assert version
    application = [f"sparkVersion: {jvm['spark.version']}\n", f"image: topiclake:{version[1]}\n"]
    expected = {
        "requirements.txt": [
            f"pyspark=={jvm['spark.version']} \\\n",
            f"delta-spark=={jvm['delta.version']} \\\n",
        ],
        "jars/spark/pom.xml": [
            f"<artifactId>delta-spark_{spark_series}_${{scala.binary.version}}</artifactId>"
        ],
        "docker-compose.yaml": [f"image: apache/kafka:{jvm['kafka.version']}\n"],
        "deploy/spark/Dockerfile": [
            f"FROM apache/spark:{python['pyspark'][0]}-scala{scala}-java17-python3-ubuntu\n"
        ],
        "deploy/kubernetes/Dockerfile": [f"FROM topiclake-spark:{jvm['spark.version']}\n"],
        "deploy/kubernetes/taxi-publish.yaml": application,
        "deploy/kubernetes/taxi-archive.yaml": application,
        "docs/change-data-source.md": [
            f"connect-runtime:{jvm['kafka.version']}`",
            f"debezium-connector-postgres:{jvm['debezium.version']}`",
            f"apicurio-registry-utils-converter:{jvm['apicurio.converter.version']}`",
        ],
        "docs/databricks.md": [
            f"cp dist/topiclake-{version[1]}-py3-none-any.whl ",
            f"lake/topiclake-{version[1]}-py3-none-any.whl\n",
        ],
        "docs/installation.md": [f"pip install 'dist/topiclake-{version[1]}-py3-none-any.whl[workbench]'\n"],
        "docs/kubernetes.md": [
            f"--tag topiclake-spark:{jvm['spark.version']} .\n",
            f"--tag topiclake:{version[1]} .\n",
        ],
    }
    return [
        f"{name} has no {text.strip()}, as jars/pom.xml and requirements.txt ask"
        for name, texts in expected.items()
        for text in texts
        if text not in files[name]
    ]


def python_floors(files: dict[str, str]) -> dict[str, str]:
    """Every place that names the oldest Python, and what it names."""
    patterns = {
        "requires-python": ("pyproject.toml", r'requires-python = ">=(3\.\d+)"'),
        "ruff": ("pyproject.toml", r'target-version = "py(3\d+)"'),
        "mypy": ("pyproject.toml", r'python_version = "(3\.\d+)"'),
        "make setup": ("Makefile", r"version_info < \((3, \d+)\)"),
        "make setup's message": ("Makefile", r"needs (3\.\d+) or newer"),
        "CONTRIBUTING.md": ("CONTRIBUTING.md", r"Python (3\.\d+)"),
        "README.md": ("README.md", r"Python (3\.\d+)"),
    }
    found = {place: re.search(pattern, files.get(name, "")) for place, (name, pattern) in patterns.items()}
    return {place: re.sub(r"^3\D*", "3.", match[1]) for place, match in found.items() if match}


def pom_problems(pom: str, defined: dict[str, str]) -> list[str]:
    """What keeps a pom from being a lock."""
    root = elements(pom)
    return [
        *(f"version {text} is not pinned" for text in _loose_versions(root, defined)),
        *(f"{name} brings more than itself" for name in _open_dependencies(root)),
        *(
            f"<{entry.tag}> names a place: {entry.text}"
            for entry in root.iter()
            if "://" in (entry.text or "")
        ),
        *(f"<{entry.tag}> is not for this file" for entry in root.iter() if "epositories" in entry.tag),
    ]


def _loose_versions(root: ElementTree.Element, defined: dict[str, str]) -> list[str]:
    texts = [(entry.text or "").strip() for entry in root.iter("version")]
    return [text for text in texts if not _is_pinned(text, defined)]


def _is_pinned(text: str, defined: dict[str, str]) -> bool:
    if name := re.fullmatch(r"\$\{([\w.-]+)\}", text):
        return name[1] in defined or name[1].startswith(BUILT_IN)
    return bool(re.fullmatch(r"\d[\w.-]*", text)) and "SNAPSHOT" not in text


def _open_dependencies(root: ElementTree.Element) -> list[str]:
    def excludes_everything(dependency: ElementTree.Element) -> bool:
        exclusions = dependency.iterfind("./exclusions/exclusion")
        return any(e.findtext("groupId") == "*" and e.findtext("artifactId") == "*" for e in exclusions)

    # A plugin's own are on no class path of ours.
    of_plugins = {id(entry) for plugin in root.iter("plugin") for entry in plugin.iter("dependency")}
    listed = [entry for entry in root.iter("dependency") if id(entry) not in of_plugins]
    found = [entry for entry in listed if not excludes_everything(entry)]
    return [str(entry.findtext("artifactId")) for entry in found]


def test_versions_agree_everywhere() -> None:
    assert disagreements(FILES) == []


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("requirements.txt", "pyspark==4.1.1", "pyspark==4.1.2"),
        ("requirements.txt", "delta-spark==4.4.0", "delta-spark==4.4.1"),
        ("jars/pom.xml", "<kafka.version>4.1.0<", "<kafka.version>4.1.1<"),
        ("jars/spark/pom.xml", "delta-spark_4.1_", "delta-spark_4.0_"),
        ("docker-compose.yaml", "apache/kafka:4.1.0", "apache/kafka:4.0.0"),
        ("deploy/spark/Dockerfile", "apache/spark:4.1.1-", "apache/spark:4.0.1-"),
        ("deploy/spark/Dockerfile", "-scala2.13-", "-scala2.12-"),
        ("deploy/kubernetes/Dockerfile", "topiclake-spark:4.1.1", "topiclake-spark:4.0.1"),
        ("deploy/kubernetes/taxi-publish.yaml", "sparkVersion: 4.1.1", "sparkVersion: 4.0.1"),
        ("deploy/kubernetes/taxi-archive.yaml", "image: topiclake:0.2.0", "image: topiclake:0.3.0"),
        ("docs/kubernetes.md", "topiclake-spark:4.1.1", "topiclake-spark:4.0.1"),
        ("docs/change-data-source.md", "postgres:3.3.1.Final", "postgres:3.3.0.Final"),
        ("docs/databricks.md", "lake/topiclake-0.2.0-py3", "lake/topiclake-0.3.0-py3"),
        ("docs/installation.md", "/topiclake-0.2.0-py3", "/topiclake-0.3.0-py3"),
    ],
)
def test_a_version_that_is_changed_in_one_place_only_is_named(name: str, before: str, after: str) -> None:
    assert before in FILES[name]
    assert disagreements(FILES | {name: FILES[name].replace(before, after)})


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_python_package_is_pinned_with_its_hashes(name: str) -> None:
    assert len(pins(FILES[name])) > 100
    assert unlocked(FILES[name]) == []


LOCKED = f"pyspark==4.1.1 \\\n    --hash=sha256:{'0' * 64}\n"


@pytest.mark.parametrize(
    "requirement",
    [
        "requests",
        "requests>=2",
        "requests~=2.34",
        "requests==2.*",
        'requests ; python_version >= "3.11"',
        "-e ../other",
    ],
)
def test_a_python_package_that_is_not_pinned_is_named(requirement: str) -> None:
    assert unlocked(f"{LOCKED}{requirement} \\\n    --hash=sha256:{'0' * 64}\n") == [requirement]


@pytest.mark.parametrize("options", ["", " \\\n    --hash=md5:00", " \\\n    --hash=sha256:00"])
def test_a_python_package_without_hashes_is_named(options: str) -> None:
    assert unlocked(f"{LOCKED}requests==2.34.2{options}\n") == ["requests==2.34.2"]


def test_the_lock_of_the_tests_has_that_of_the_project() -> None:
    project, tests = (
        {requirement.partition(" ; ")[0]: options for requirement, options in locked(FILES[name]).items()}
        for name in ("requirements.txt", "requirements-dev.txt")
    )
    assert {pin: options for pin, options in tests.items() if pin in project} == project


def test_a_python_gets_one_version_of_each_package() -> None:
    requirements = [Requirement(text) for text in locked(FILES["requirements-dev.txt"])]
    for python in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        here = {"python_version": python, "python_full_version": f"{python}.1"}
        names = [one.name for one in requirements if one.marker is None or one.marker.evaluate(here)]
        assert len(names) == len(set(names))


def ranges(pyproject: str) -> list[Requirement]:
    """What the project needs, with all its extras but what an extra takes of others."""
    listed = pyproject.partition("\ndependencies = [")[2].partition("\n[project.scripts]")[0]
    found = [Requirement(text) for text in re.findall(r'"(.+?)"', listed)]
    return [package for package in found if package.name != "topiclake"]


def range_problems(pyproject: str, requirements: str) -> list[str]:
    """Ranges that begin with a release of neither the lock nor Databricks, or that do not fit the lock."""
    pinned, found = pins(requirements), []
    of_databricks = pins("\n".join(path.read_text("utf-8") for path in DATABRICKS))
    for package in ranges(pyproject):
        lower = [bound.version for bound in package.specifier if bound.operator == ">="]
        versions = pinned.get(canonicalize_name(package.name), [])
        known = [*versions, *of_databricks.get(canonicalize_name(package.name), [])]
        begins = any(version.startswith(bound) for version in known for bound in lower)
        if not begins or not all(package.specifier.contains(version) for version in versions):
            found.append(f"{package} does not begin with {versions}")
    return found


def test_the_ranges_of_the_package_begin_with_the_releases_of_the_lock() -> None:
    names = {canonicalize_name(package.name) for package in ranges(FILES["pyproject.toml"])}
    assert {"pydantic", "pyspark", "delta-spark", "sqlalchemy", "protobuf", "openlineage-python"} <= names
    assert range_problems(FILES["pyproject.toml"], FILES["requirements.txt"]) == []


@pytest.mark.parametrize(
    ("before", "after"), [("pydantic>=2.10", "pydantic>=2.15"), ("SQLAlchemy>=2.0,<3", "SQLAlchemy<3")]
)
def test_a_range_that_the_tests_do_not_run_on_is_named(before: str, after: str) -> None:
    assert before in FILES["pyproject.toml"]
    changed = FILES["pyproject.toml"].replace(before, after)
    assert len(range_problems(changed, FILES["requirements.txt"])) == 1


def test_the_oldest_python_is_the_same_everywhere() -> None:
    readme = ROOT / "README.md"
    floors = python_floors(FILES | ({"README.md": readme.read_text("utf-8")} if readme.is_file() else {}))
    assert {"requires-python", "ruff", "mypy", "make setup", "CONTRIBUTING.md"} <= set(floors)
    assert set(floors.values()) == {floors["requires-python"]}, floors


def test_another_oldest_python_is_noticed() -> None:
    raised = FILES["pyproject.toml"].replace(">=3.10", ">=3.11")
    assert set(python_floors(FILES | {"pyproject.toml": raised}).values()) == {"3.10", "3.11"}


def test_there_are_poms_for_what_runs() -> None:
    assert {"spark", "avro", "kafka", "schema-registry"} <= set(POMS)


def test_every_module_of_jars_is_listed_in_its_parent() -> None:
    listed = {module.text for module in elements(FILES["jars/pom.xml"]).iterfind("./modules/module")}
    assert listed == set(POMS)


@pytest.mark.parametrize("module", POMS)
def test_the_list_of_jars_is_a_lock(module: str) -> None:
    assert pom_problems(POMS[module], properties(FILES["jars/pom.xml"])) == []


EXCLUDED = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("<version>${avro.version}</version>", "<version>${avor.version}</version>", "avor.version"),
        ("<version>${avro.version}</version>", "<version>[1.12,)</version>", "[1.12,)"),
        ("<version>${avro.version}</version>", "<version>LATEST</version>", "LATEST"),
        ("<version>${avro.version}</version>", "<version>1.13.0-SNAPSHOT</version>", "SNAPSHOT"),
        (EXCLUDED, "", "avro brings more than itself"),
        (EXCLUDED, EXCLUDED.replace("<groupId>*<", "<groupId>org.slf4j<"), "avro brings more than itself"),
        ("<build>", "<repositories/><build>", "<repositories>"),
        ("<build>", "<url>https://example.org</url><build>", "https://example.org"),
    ],
)
def test_a_pom_that_is_no_lock_is_named(before: str, after: str, named: str) -> None:
    assert before in POMS["avro"]
    problems = pom_problems(POMS["avro"].replace(before, after), properties(FILES["jars/pom.xml"]))
    assert len(problems) == 1
    assert named in problems[0]


def test_each_image_has_an_exact_tag() -> None:
    compose = re.findall(r"^\s*image: (\S+)$", FILES["docker-compose.yaml"], re.MULTILINE)
    built = [
        image
        for name, text in FILES.items()
        if name.endswith("Dockerfile")
        for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    ]
    assert len(compose) > 3
    assert built
    assert [image for image in compose + built if not re.search(r":v?\d+\.\d+(\.\d+)?[\w.-]*$", image)] == []
