"""Who may import whom (docs/architecture.md), read from the source with ast."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A room imports rooms on lower floors; rooms on one floor do not know each other.
FLOORS = [
    {"ingest", "sinks"},
    {"changes"},
    {"sources", "monitoring"},
    {"formats", "streaming"},
    {"schema_registry", "kafka", "storage", "delta"},
    {"login"},
    {"config", "session"},
    {"errors", "reasons", "local_frame", "threads"},
]
WORKBENCH_FLOORS = [
    {"commands"},
    {"lab", "runner"},
    {"kernel"},
    {"display", "dashboard"},
    {"jobs"},
    {"services", "dbutils"},
    {"host", "notebook"},
]


def below(floors: list[set[str]]) -> dict[str, set[str]]:
    """By room, the rooms on lower floors."""
    return {room: set().union(*floors[floor + 1 :]) for floor, rooms in enumerate(floors) for room in rooms}


BELOW = {"topiclake": below(FLOORS), "workbench": below(WORKBENCH_FLOORS)}
#: What the audit, which proves the ingest, may use of it: what is stored, not what decides.
OPEN_TO_AUDIT = {"topiclake.ingest.paused_topics", "topiclake.ingest.quarantine.replay_claims"}
#: What the workbench may use of the library.
OPEN_TO_WORKBENCH = {
    *("config", "errors", "kafka", "login", "monitoring", "reasons", "schema_registry", "session", "storage"),
}

#: None of these exists on Spark Connect, so none on Databricks serverless.
CLASSIC_ONLY = {"_jvm", "_jdf", "_jsparkSession", "_sc", "sparkContext", "SparkContext", "rdd", "RDD"}
#: The classic `addListener` asks a listener for the first two. By the third, a session counts its tasks.
FOR_CLASSIC = {"monitoring.json_listener": {"SparkContext", "_jvm"}, "session": {"sparkContext"}}

FIRST_LINE = "# Databricks notebook source"
NOT_IN_A_NOTEBOOK = {
    ast.ClassDef: "class",
    ast.For: "for",
    ast.AsyncFor: "for",
    ast.While: "while",
    ast.ListComp: "for",
    ast.SetComp: "for",
    ast.DictComp: "for",
    ast.GeneratorExp: "for",
}


def imports(module: str, source: str, modules: set[str], *, is_package: bool = False) -> Iterator[str]:
    """Every module that `module` imports, also in functions; `from a import b` is a.b where that is one."""
    parts = module.split(".") + (["__init__"] if is_package else [])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*parts[: -node.level], *filter(None, [node.module])])
                if node.level
                else node.module or ""
            )
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__") and node.args:
            yield getattr(node.args[0], "value", None) or "?"


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def room_of(module: str) -> str:
    """`topiclake.sinks.files` belongs to `sinks`; the package itself is ""."""
    return module.split(".")[1] if "." in module else ""


def import_violations(sources: dict[str, str]) -> list[str]:
    """Sentences that name each import against the rules, and each module outside of the rooms.

    Args:
        sources: Module name → source; the name of a package's `__init__.py` ends in `.__init__`.
    """
    modules = {name.removesuffix(".__init__") for name in sources}
    found = []
    for name, source in sources.items():
        module, is_package = name.removesuffix(".__init__"), name.endswith(".__init__")
        rooms, room = BELOW.get(module.split(".")[0], {}), room_of(module)
        if rooms and room not in {*rooms, "", "__main__"}:
            found.append(f"{module} is in no room: docs/architecture.md says what each one is for")
            continue
        for imported in imports(module, source, modules, is_package=is_package):
            if reason := _refusal(module, imported):
                found.append(f"{module} imports {imported}: {reason}")
    return found


def _refusal(module: str, imported: str) -> str:
    """Why the import is against the rules; "" when it is not."""
    importer, package = module.split(".")[0], imported.split(".")[0]
    if package == "workbench" and importer != "workbench":
        return "only the workbench may import itself"
    if package == "topiclake_examples" and importer != "topiclake_examples":
        return "examples are for notebooks"
    room, own = room_of(imported), room_of(module)
    if package == importer == "workbench" and own not in ("", "__main__"):
        allowed = BELOW["workbench"][own] | {own}
        return "" if room in allowed else f"it may import of workbench only {', '.join(sorted(allowed))}"
    if package != "topiclake" or module == "topiclake":
        return ""
    if importer == "workbench":
        allowed = OPEN_TO_WORKBENCH
    elif importer == "topiclake_examples":
        return "" if room in ("", "errors") else "an example uses public names, as a user does"
    elif importer == "topiclake":
        if module.startswith("topiclake.ingest.audit.") and room == "ingest":
            is_open = imported in OPEN_TO_AUDIT or imported.startswith("topiclake.ingest.audit")
            return "" if is_open else "the proof shares no code with what it proves"
        allowed = BELOW["topiclake"][own] | {own}
    else:
        return ""
    return "" if room in allowed else f"it may import of topiclake only {', '.join(sorted(allowed))}"


def circles(sources: dict[str, str]) -> list[list[str]]:
    """Return the circles of modules that import each other, also in functions."""
    modules = {name.removesuffix(".__init__") for name in sources}
    graph = {
        name.removesuffix(".__init__"): {
            imported
            for imported in imports(name, source, modules, is_package=name.endswith(".__init__"))
            if imported in modules
        }
        for name, source in sources.items()
    }
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done:
            for imported in sorted(graph[module]):
                visit(imported, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def classic_violations(sources: dict[str, str]) -> list[str]:
    """Sentences that name each use of what Spark Connect does not have."""
    found = []
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            names = {getattr(node, "attr", None), getattr(node, "id", None)}
            if isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Call) and _called(node) in ("getattr", "hasattr"):
                names |= {
                    getattr(argument, "value", None)
                    for argument in node.args
                    if isinstance(argument, ast.Constant)
                }
            found += [
                f"{module} uses {name}: Spark Connect has none"
                for name in sorted((CLASSIC_ONLY & names) - FOR_CLASSIC.get(module, set()))
            ]
            if "createDataFrame" in names and module != "local_frame":
                found.append(f"{module} uses createDataFrame: local_frame needs no Python workers")
    return found


def notebook_violations(sources: dict[str, str]) -> list[str]:
    """Sentences that name what does not belong into a notebook."""
    found = []
    for name, source in sources.items():
        if source.partition("\n")[0] != FIRST_LINE:
            found.append(f"{name}: its first line must be '{FIRST_LINE}'")
        for node in ast.walk(ast.parse(source)):
            if word := NOT_IN_A_NOTEBOOK.get(type(node)):
                found.append(f"{name}, line {node.lineno}: `{word}` belongs into a package below src/")
            if isinstance(node, ast.FunctionDef) and not ast.get_docstring(node):
                found.append(f"{name}, line {node.lineno}: {node.name} has no docstring")
        found += [
            f"{name} imports {imported}: it must run on Databricks, where there is no workbench"
            for imported in imports(name, source, set())
            if imported.split(".")[0] == "workbench"
        ]
    return found


def read(folder: Path) -> dict[str, str]:
    """Module name → source, for every Python file under `folder`."""
    files = sorted(folder.rglob("*.py"))
    return {
        ".".join(file.relative_to(folder).with_suffix("").parts): file.read_text("utf-8") for file in files
    }


def test_rooms_import_only_rooms_on_lower_floors() -> None:
    sources = read(ROOT / "src")
    assert {"topiclake.errors", "topiclake.config.load", "workbench.__init__"} <= set(sources)
    assert import_violations(sources) == []


def test_no_modules_import_each_other() -> None:
    assert circles(read(ROOT / "src")) == []
    assert circles({"a": "import b", "b": "def f():\n    from c import d", "c": "import a", "e": "import a"})


def test_the_library_uses_only_what_spark_connect_has() -> None:
    sources = read(ROOT / "src" / "topiclake")
    assert "errors" in sources
    assert classic_violations(sources) == []


def test_notebooks_only_tell_the_story() -> None:
    sources = read(ROOT / "notebooks")
    assert {"gps_ingest", "gps_publish", "gps_query"} <= set(sources)
    assert notebook_violations(sources) == []


TREE = {
    "topiclake.__init__": "from topiclake.ingest.start import start_ingest\nfrom topiclake import errors",
    "topiclake.ingest.__init__": "",
    "topiclake.ingest.start": "from topiclake.formats.avro import codec\nfrom topiclake.kafka import client\n"
    "from topiclake.session import is_databricks",
    "topiclake.ingest.audit.audit": "from topiclake.ingest.audit import counts\n"
    "from topiclake.ingest import paused_topics\nfrom topiclake.kafka import client",
    "topiclake.ingest.audit.counts": "",
    "topiclake.ingest.paused_topics": "from topiclake.delta.table import read",
    "topiclake.kafka.client": "from topiclake.config.load import KafkaSettings\nimport pyspark.sql",
    "topiclake.delta.table": "import topiclake.errors",
    "topiclake.formats.avro.codec": "from . import union\nfrom ...schema_registry.wire_format import frame",
    "topiclake.formats.avro.union": "",
    "topiclake.schema_registry.wire_format": "import pyspark",
    "topiclake.session": "from topiclake.errors import PlatformError",
    "topiclake.config.load": "from topiclake.errors import ConfigError",
    "topiclake.errors": "",
    "topiclake.sinks.__init__": "",
    "topiclake.sinks.files": "from .. import streaming\nfrom topiclake.errors import TopiclakeError",
    "topiclake.streaming.__init__": "",
    "topiclake_examples.gps.tracks": "import topiclake as tl\nfrom topiclake.errors import ConfigError",
    "workbench.__init__": "",
    "workbench.__main__": "from workbench.commands import cli",
    "workbench.commands.cli": "from workbench.runner import runner",
    "workbench.runner.runner": "from topiclake.config.load import load_settings\n"
    "from topiclake import errors, session\nfrom workbench.kernel.kernel import main",
    "workbench.kernel.kernel": "",
}


def test_a_tree_that_keeps_the_rules_passes() -> None:
    assert import_violations(TREE) == []
    assert circles(TREE) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("topiclake.ingest.start", "import workbench"),
        ("topiclake.ingest.start", "from workbench.dbutils import DBUtils"),
        ("topiclake.ingest.start", "def load():\n    import workbench.runner.runner"),
        ("topiclake.ingest.start", "import importlib\nimportlib.import_module('workbench')"),
        ("topiclake.__init__", "import workbench"),
        ("topiclake.__init__", "import topiclake_examples"),
        ("topiclake.ingest.start", "from topiclake.sinks import files"),
        ("topiclake.ingest.start", "from topiclake_examples.gps import tracks"),
        ("topiclake.ingest.audit.audit", "from topiclake.ingest import start"),
        ("topiclake.kafka.client", "from topiclake.delta import table"),
        ("topiclake.kafka.client", "from ..delta.table import append"),
        ("topiclake.kafka.client", "from topiclake.sinks.files import write"),
        ("topiclake.sinks.files", "from .. import ingest"),
        ("topiclake.sinks.__init__", "from ..ingest import start"),
        ("topiclake.formats.avro.codec", "from topiclake.streaming import queries"),
        ("topiclake.schema_registry.wire_format", "from topiclake.formats.avro import codec"),
        ("topiclake.config.load", "import topiclake.session"),
        ("topiclake.errors", "from topiclake.config.load import Settings"),
        ("topiclake.session", "from topiclake.formats.avro.codec import decode"),
        ("topiclake.delta.table", "from topiclake import start_ingest"),
        ("topiclake_examples.gps.tracks", "from topiclake.kafka import client"),
        ("workbench.runner.runner", "from topiclake.ingest.start import start_ingest"),
        ("workbench.runner.runner", "from topiclake import delta"),
        ("workbench.runner.runner", "import topiclake"),
        ("workbench.runner.runner", "from topiclake import ConfigError"),
        ("workbench.runner.runner", "from workbench.lab import server"),
        ("workbench.kernel.kernel", "from workbench.runner import runner"),
    ],
)
def test_an_import_against_the_rules_is_named(module: str, source: str) -> None:
    violations = import_violations(TREE | {module: source})
    assert len(violations) == 1
    assert violations[0].startswith(f"{module.removesuffix('.__init__')} imports ")


def test_a_module_outside_of_the_rooms_is_named() -> None:
    for module in ("topiclake.helpers", "workbench.helpers"):
        (violation,) = import_violations(TREE | {module: ""})
        assert violation.startswith(f"{module} is in no room")


@pytest.mark.parametrize(
    "source",
    [
        "spark._jvm.java",
        "gps._jdf",
        "spark.sparkContext",
        "gps.rdd",
        "from pyspark import SparkContext",
        "getattr(spark, '_jvm')",
        "spark.createDataFrame([(1,)])",
    ],
)
def test_what_spark_connect_lacks_is_named(source: str) -> None:
    assert len(classic_violations({"topiclake.kafka.client": source})) == 1


def test_public_spark_passes() -> None:
    assert classic_violations({"topiclake.kafka.client": "spark.readStream.format('kafka').load()"}) == []


@pytest.mark.parametrize(
    "cell",
    [
        "def flatten():\n    pass",
        "class Gps:\n    pass",
        "for row in rows:\n    row",
        "while True:\n    break",
        "names = [row.name for row in rows]",
        "total = sum(row.n for row in rows)",
        "import workbench",
        "from workbench.dbutils import dbutils",
    ],
)
def test_a_cell_that_does_not_belong_into_a_notebook_is_named(cell: str) -> None:
    named = "def flatten(events):\n    '''Return one row an event.'''\n    return events"
    assert notebook_violations({"gps": f"{FIRST_LINE}\n{named}\nspark.table('gps')\n"}) == []
    assert len(notebook_violations({"gps": f"{FIRST_LINE}\n{cell}\n"})) == 1


@pytest.mark.parametrize("source", ["", "\n# Databricks notebook source\n", "import topiclake\n"])
def test_a_notebook_without_its_first_line_is_named(source: str) -> None:
    assert notebook_violations({"gps": source}) == [f"gps: its first line must be '{FIRST_LINE}'"]
