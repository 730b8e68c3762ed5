"""Who may import whom (docs/architecture.md, "Three packages"), read from the source with ast."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Each layer may import what stands below it; modules of one layer don't import each other.
LAYERS = [
    {"pipelines"},
    {"tables", "audit", "archive", "streams", "kafka_batch", "avro_producer", "restarts", "sinks"}
    | {"monitoring"},
    {"avro_records"},
    {"ingest"},
    {"automatic_replay"},
    {"replay"},
    {"quarantine_views", "replay_reading", "audit_counts", "audit_range", "start_check"},
    {"consumer_groups", "resume_table"},
    {"targets", "topics", "value_batch", "registered_values"},
    {"micro_batch", "static_schemas", "lineage"},
    {"schemas", "data_loss", "queries", "batch_followers", "schema_decisions"},
    {"kafka_writer"},
    {"rows", "lost_ranges", "open_transactions", "parquet_folder", "value_formats"},
    {"storage"},
    {"kafka_offsets", "java_console", "kafka_source"},
    {"kafka_admin", "constraints", "batch_offsets", "resumptions"} | {"replay_claims"},
    {"kafka", "checkpoint", "delta", "evolution", "quarantine", "progress"}
    | {
        "checkpoint_notes",
        "table_commits",
        "windows",
        "made_rows",
        "state",
        "platform_check",
        "audit_report",
        "avro_event",
        "event_stream",
    },
    {"avro_form", "avro_encoding", "avro_derived", "json_schema_codec", "protobuf_codec"},
    {"avro", "json_values", "json_shape"},
    {"schema_registry", "avro_reason", "json_reason", "json_schema", "deserializers"}
    | {"protobuf_schema", "protobuf_values"},
    {"registry_answers", "registry_client", "wire_format"},
    {"retries"},
    {"avro_schema"},
    {"avro_kept"},
    {"avro_union", "avro_default", "avro_resolution"},
    {"avro_tree"},
    {"avro_names"},
    {"config"},
    {"parameters", "driver_lock"},
    {"errors", "batch_counts", "observed"},
]
ALLOWED = {name: set().union(*LAYERS[depth + 1 :]) for depth, layer in enumerate(LAYERS) for name in layer}
#: Stands beside config. Only what starts a pipeline needs it.
ALLOWED["session"] = {"config", "errors"}
for _name in (
    "pipelines",
    "ingest",
    "archive",
    "audit",
    "streams",
    "kafka_batch",
    "kafka_writer",
    "sinks",
    "platform_check",
    "storage",
    "state",
):
    ALLOWED[_name].add("session")
#: What the workbench may use of the library.
OPEN_TO_WORKBENCH = {"config", "errors", "java_console", "monitoring", "session"}

#: None of these exists on Spark Connect, so none on Databricks serverless.
CLASSIC_ONLY = {"_jvm", "_jdf", "_jsparkSession", "_sc", "sparkContext", "SparkContext", "rdd", "RDD"}
#: What only PySpark's classic `addListener` asks a listener for.
FOR_CLASSIC = {"monitoring.json_listener": {"SparkContext", "_jvm"}}

FIRST_LINE = "# Databricks notebook source"
NOT_IN_A_NOTEBOOK = {
    ast.FunctionDef: "def",
    ast.AsyncFunctionDef: "def",
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


def noun(module: str) -> str:
    """`topiclake.sinks.jdbc.upsert` belongs to `sinks`; the package itself is ""."""
    return module.split(".")[1] if "." in module else ""


def import_violations(sources: dict[str, str]) -> list[str]:
    """Sentences that name each import against the rules, and each module without a place in them.

    Args:
        sources: Module name → source; the name of a package's `__init__.py` ends in `.__init__`.
    """
    modules = {name.removesuffix(".__init__") for name in sources}
    found = []
    for name, source in sources.items():
        module, is_package = name.removesuffix(".__init__"), name.endswith(".__init__")
        package = module.split(".")[0]
        if package == "topiclake" and noun(module) and noun(module) not in ALLOWED:
            found.append(
                f"{module} has no place yet: put '{noun(module)}' into LAYERS of tests/unit/test_imports.py "
                "and into docs/architecture.md"
            )
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
    if package != "topiclake" or module == "topiclake":
        return ""
    if importer == "workbench":
        allowed = OPEN_TO_WORKBENCH
    elif importer == "topiclake":
        allowed = ALLOWED[noun(module)] | {noun(module)}
    else:
        return ""
    if noun(imported) in allowed:
        return ""
    return f"it may import of topiclake only {', '.join(sorted(allowed - {noun(module)})) or 'nothing'}"


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
    return found


def notebook_violations(sources: dict[str, str]) -> list[str]:
    """Sentences that name what does not belong into a notebook."""
    found = []
    for name, source in sources.items():
        if source.partition("\n")[0] != FIRST_LINE:
            found.append(f"{name}: its first line must be '{FIRST_LINE}'")
        for node in ast.walk(ast.parse(source)):
            if word := NOT_IN_A_NOTEBOOK.get(type(node)):
                found.append(f"{name}, line {node.lineno}: `{word}` belongs into src/topiclake")
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


def test_the_packages_import_only_what_they_may() -> None:
    sources = read(ROOT / "src")
    assert {"topiclake.errors", "topiclake.config.load", "workbench.__init__"} <= set(sources)
    assert import_violations(sources) == []


def test_the_library_uses_only_what_spark_connect_has() -> None:
    sources = read(ROOT / "src" / "topiclake")
    assert "errors" in sources
    assert classic_violations(sources) == []


def test_notebooks_only_tell_the_story() -> None:
    sources = read(ROOT / "notebooks")
    assert {"gps_ingest", "gps_publish", "gps_query"} <= set(sources)
    assert notebook_violations(sources) == []


TREE = {
    "topiclake.__init__": "from topiclake.ingest.start import ingest\nfrom topiclake import errors",
    "topiclake.pipelines": "from topiclake import ingest, session\nfrom topiclake.delta.table import append",
    "topiclake.ingest.start": "from topiclake import avro, kafka\nfrom topiclake.session import is_databricks",
    "topiclake.kafka.client": "from topiclake.config.load import KafkaSettings\nimport pyspark.sql",
    "topiclake.delta.table": "import topiclake.errors",
    "topiclake.avro": "from . import schema_registry\nfrom .wire_format import frame",
    "topiclake.schema_registry.registry": "from topiclake.config.load import Settings",
    "topiclake.schema_registry.wire_format": "import pyspark",
    "topiclake.session": "from topiclake.errors import PlatformError\nfrom topiclake.config import settings",
    "topiclake.config.load": "from topiclake.errors import ConfigError",
    "topiclake.errors": "",
    "topiclake.sinks.__init__": "from . import jdbc\nfrom .. import avro",
    "topiclake.sinks.jdbc.upsert": "from topiclake.errors import TopiclakeError",
    "workbench.__init__": "",
    "workbench.runner": "from topiclake.config.load import load_settings\n"
    "from topiclake import errors, session\nfrom workbench import runner",
}


def test_a_tree_that_keeps_the_rules_passes() -> None:
    assert import_violations(TREE) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("topiclake.ingest.start", "import workbench"),
        ("topiclake.ingest.start", "from workbench.dbutils import DBUtils"),
        ("topiclake.ingest.start", "def load():\n    import workbench.runner"),
        ("topiclake.ingest.start", "import importlib\nimportlib.import_module('workbench')"),
        ("topiclake.__init__", "import workbench"),
        ("topiclake.ingest.start", "from topiclake import pipelines"),
        ("topiclake.kafka.client", "from topiclake import delta"),
        ("topiclake.kafka.client", "from .delta import append"),
        ("topiclake.kafka.client", "from topiclake.sinks.jdbc.upsert import write"),
        ("topiclake.kafka.client", "from topiclake.session import is_databricks"),
        ("topiclake.sinks.jdbc.upsert", "from .. import pipelines"),
        ("topiclake.sinks.__init__", "from .. import pipelines"),
        ("topiclake.avro", "from topiclake.kafka.client import read"),
        ("topiclake.schema_registry.wire_format", "from topiclake import schema_registry"),
        ("topiclake.config.load", "import topiclake.session"),
        ("topiclake.errors", "from topiclake.config.load import Settings"),
        ("topiclake.session", "from topiclake.avro import decode"),
        ("topiclake.delta.table", "from topiclake import ingest_gps"),
        ("workbench.runner", "from topiclake.ingest.start import ingest"),
        ("workbench.runner", "from topiclake import kafka"),
        ("workbench.runner", "import topiclake"),
        ("workbench.runner", "from topiclake import ConfigError"),
    ],
)
def test_an_import_against_the_rules_is_named(module: str, source: str) -> None:
    violations = import_violations(TREE | {module: source})
    assert len(violations) == 1
    assert violations[0].startswith(f"{module.removesuffix('.__init__')} imports ")


def test_a_module_without_a_place_says_where_to_put_it() -> None:
    (violation,) = import_violations(TREE | {"topiclake.helpers": "import workbench"})
    assert "put 'helpers' into LAYERS of tests/unit/test_imports.py" in violation


@pytest.mark.parametrize(
    "source",
    [
        "spark._jvm.java",
        "gps._jdf",
        "spark.sparkContext",
        "gps.rdd",
        "from pyspark import SparkContext",
        "getattr(spark, '_jvm')",
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
        "async def flatten():\n    pass",
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
    assert notebook_violations({"gps": f"{FIRST_LINE}\nspark.table('gps')\n"}) == []
    assert len(notebook_violations({"gps": f"{FIRST_LINE}\n{cell}\n"})) == 1


@pytest.mark.parametrize("source", ["", "\n# Databricks notebook source\n", "import topiclake\n"])
def test_a_notebook_without_its_first_line_is_named(source: str) -> None:
    assert notebook_violations({"gps": source}) == [f"gps: its first line must be '{FIRST_LINE}'"]
