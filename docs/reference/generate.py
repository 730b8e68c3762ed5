"""Write the reference pages from the code: `make reference`. A test compares the pages with the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pyspark.sql.types import StructType
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

import topiclake as tl
from topiclake.changes.order import CDC_COLUMN
from topiclake.config.pipeline import QUARANTINE, REPLAYS
from topiclake.config.secret import Secret
from topiclake.config.settings import Settings
from topiclake.errors import TopiclakeError
from topiclake.ingest import paused_topics, quarantine_rows
from topiclake.ingest.quarantine import replay_claims
from topiclake.monitoring import store
from topiclake.monitoring.store import Store
from topiclake.reasons import REASONS
from topiclake.sinks import notifications
from topiclake.sinks.jdbc import tables as jdbc_tables
from topiclake.sources import schema_decisions
from topiclake.sources.layout import HEADERS_COLUMN, KAFKA_COLUMN, KEY_COLUMN, TOMBSTONE_COLUMN
from topiclake.streaming.windows import LATE_COLUMN
from workbench.commands.cli import cli
from workbench.dashboard.metrics import STATES, exposition
from workbench.jobs import run_records

FOLDER = Path(__file__).parent
PROJECT = FOLDER.parents[1]
NOTICE = "<!-- Written by docs/reference/generate.py: change the code, then run `make reference`. -->\n"
COLUMNS = 100

#: Modules with classes of errors.
ERRORS = (
    "topiclake.errors",
    "topiclake.ingest.consumer_group",
    "workbench.dbutils.jobs",
    "workbench.dbutils.notebook",
    "workbench.dbutils.widgets",
    "workbench.display.query",
    "workbench.kernel.magics",
    "workbench.notebook.source",
    "workbench.runner.execution",
)
#: Sections of a docstring that list names.
ENTRIES = ("Args", "Raises", "Attributes")
#: Variables that a user sets, by what they do.
VARIABLES = {
    "WORKBENCH_CATALOG": "The value `hive` keeps names of tables between runs.",
    "WORKBENCH_HOME": "Folder with topics, tables, logs and runs; by default `.workbench` in the project.",
    "WORKBENCH_JAVA_OPTIONS": "More options of each JVM that the workbench starts.",
    "WORKBENCH_KAFKA_HEAP": "Heap of the embedded broker, such as `2g`.",
    "WORKBENCH_IVY_SETTINGS": "Settings file of Ivy for a mirror of Maven Central.",
    "WORKBENCH_SPARK_MASTER": "Master of a Spark cluster, in place of a Spark in the kernel's own JVM.",
    "WORKBENCH_SPARK_PROPERTIES": "File with settings that a driver of that cluster needs.",
    "WORKBENCH_SPARK_UI": "Any value opens Spark's own pages.",
    "WORKBENCH_KAFKA": "Address of a broker, in place of the embedded one (`conf/local.yaml`).",
    "WORKBENCH_SCHEMA_REGISTRY": "Address of a registry, in place of the embedded one (`conf/local.yaml`).",
    "WORKBENCH_DATALAKE": "Folder or source of the tables, in place of the home's (`conf/local.yaml`).",
    "TOPICLAKE_KAFKA": "Address of the broker, in the configurations of `azure`, `databricks` and `s3`.",
    "TOPICLAKE_SCHEMA_REGISTRY": "Address of the registry, in the same configurations.",
    "TOPICLAKE_STORAGE": "Source of the tables, in the same configurations.",
    "TOPICLAKE_REGION": "Region of the bucket, in the configuration of `s3`.",
    "TOPICLAKE_SECRETS_FOLDER": "Folder of secrets, such as Kubernetes mounts; by default `conf/secrets`.",
    "TOPICLAKE_SECRET_": "Prefix of a secret: `TOPICLAKE_SECRET_<SCOPE>_<KEY>`, in capitals, `_` for `-`.",
    "INPUT_PATH": "Files that the notebook `taxi_publish` reads, if its parameter `source` is not set.",
    "JAVA_HOME": "Java 17 for Spark and the embedded services; by default the `java` on the path.",
    "XDG_CACHE_HOME": "Folder for jars and programs that a wheel fetches; by default `~/.cache`.",
    "XDG_DATA_HOME": "Folder for the project of a wheel; by default `~/.local/share`.",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/."""
    made = {
        "configuration.md": _configuration(),
        "commands.md": _commands(),
        "library.md": _library(),
        "notebooks.md": _notebooks(),
        "errors.md": _errors(),
        "reasons.md": _reasons(),
        "tables.md": _tables(),
        "metrics.md": _metrics(),
        "environment.md": _environment(),
    }
    written = {
        f"reference/{name}": NOTICE + re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"
        for name, text in made.items()
    }
    return written | {"llms.txt": _index(written)}


def _index(reference: Mapping[str, str]) -> str:
    """Return the index of all pages for programs (https://llmstxt.org)."""
    others = {file.name: file.read_text("utf-8") for file in sorted((PROJECT / "docs").glob("*.md"))}
    lines = [
        "# Topiclake\n",
        "> Carries Kafka topics into Delta tables and other sinks from Databricks-style notebooks, and",
        "> proves that every record arrived exactly once.\n",
        "- [The front page](../README.md): the first commands, and the page for each task",
        "- [For agents](../AGENTS.md): the page for each task, and the rules of a change",
        "- [How to change the code](../CONTRIBUTING.md)",
        "- [Changes of each version](../CHANGELOG.md)",
        "- [Security](../SECURITY.md): trusted and untrusted inputs",
    ]
    tutorials = {
        f"../notebooks/tutorials/{file.name}": _title(file)
        for file in sorted((PROJECT / "notebooks" / "tutorials").glob("*.py"))
    }
    for title, entries in (("Tutorials", tutorials), ("Pages", others), ("Reference", reference)):
        lines.append(f"\n## {title}\n")
        for path, text in entries.items():
            (heading,) = re.findall(r"\A(?:<!--.*-->\n)?# (.*)$", text, re.MULTILINE)
            # Pages of the reference have a heading for each key, command or function: too many for an index.
            parts = re.findall(r"^## (.*)$", text, re.MULTILINE) if entries is others else []
            lines.append(f"- [{heading}]({path})" + (f": {'; '.join(parts)}" if parts else ""))
    return "\n".join(lines) + "\n"


def _title(notebook: Path) -> str:
    """Return the heading of a notebook's first cell, as Markdown."""
    return f"# {re.findall(r'^# MAGIC # (.*)$', notebook.read_text('utf-8'), re.MULTILINE)[0]}"


def _configuration() -> str:
    head = """# Configuration

A configuration is `conf/base.yaml`, the pipeline's file `conf/pipelines/<name>.yaml`, the environment's
file `conf/<env>.yaml`, and parameters of a notebook or a job. A later one has priority. Keys of a pipeline
are at the top of its file, without the section's name.
"""
    sections = [
        _section(name, model)
        for name, field in Settings.model_fields.items()
        if (model := _model(field.annotation)) is not None
    ]
    sections.sort(key=lambda text: not text.startswith("## pipeline"))
    return "\n".join([head, *sections])


def _section(name: str, model: type[BaseModel]) -> str:
    lines = [
        f"## {name}\n",
        f"{_summary(model)}\n",
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    nested = []
    comments = _field_comments(model)
    for key, field in model.model_fields.items():
        inner = _model(field.annotation)
        if inner is not None:
            nested.append(_section(f"{name}.{key}", inner))
            continue
        lines.append(f"| `{key}` | {_type(field.annotation)} | {_default(field)} | {comments.get(key, '')} |")
    return "\n".join([*lines, "", *nested])


def _field_comments(model: type[BaseModel]) -> dict[str, str]:
    """Return the `#:` comment above each field of a model and its bases."""
    comments: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, BaseModel) or owner is BaseModel:
            continue
        source = inspect.getsource(owner)
        lines = source.splitlines()
        for node in ast.parse(source).body[0].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                above: list[str] = []
                number = node.lineno - 2
                while number >= 0 and lines[number].lstrip().startswith("#:"):
                    above.insert(0, lines[number].strip().removeprefix("#:").strip())
                    number -= 1
                comments[node.target.id] = " ".join(above).replace("|", "\\|")
    return comments


def _model(annotation: object) -> type[BaseModel] | None:
    """Return the section that a field holds, if it holds one."""
    candidates = get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)
    return next((kind for kind in candidates if inspect.isclass(kind) and issubclass(kind, BaseModel)), None)


def _type(annotation: object) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (UnionType, Union):
        return " or ".join(
            dict.fromkeys(_type(argument) for argument in arguments if argument is not NoneType)
        )
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is dict:
        return f"mapping of {_type(arguments[1])}"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    names = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "`true`, `false`",
        datetime: "time",
        Secret: "secret",
        Path: "path",
        Any: "any value",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else None
    if field.default_factory is not None:
        value = field.default_factory()
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None or value in ("", {}, (), []):
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value}`"


def _commands() -> str:
    parts = [
        "# Commands\n",
        "`topiclake` and `python -m workbench` are two names of one program. Each command has `--help`.\n",
    ]
    parts += [f"## {name}\n\n```text\n{text}\n```\n" for name, text in _helps(cli, "topiclake", None)]
    return "\n".join(parts)


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    settings = command.context_settings | {"terminal_width": COLUMNS, "max_content_width": COLUMNS}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            _, found, _ = command.resolve_command(context, [each])
            yield from _helps(found, each, context)


def _library() -> str:
    index = ["# Library\n", "```python\nimport topiclake as tl\n```\n", "| name | meaning |", "|---|---|"]
    parts = []
    for name in tl.__all__:
        value = getattr(tl, name)
        index.append(f"| [`{name}`](#{name.lower()}) | {_summary(value)} |")
        parts.append(f"## {name}\n\n```python\n{_signature(name, value)}\n```\n\n{_docstring(value)}\n")
    returned = {name: kind for each in tl.__all__ for name, kind in _returned(getattr(tl, each))}
    for name, kind in sorted(returned.items()):
        index.append(f"| [`{name}`](#{name.lower()}) | {_summary(kind)} |")
        parts.append(f"## {name}\n\n{_docstring(kind)}\n")
    return "\n".join([*index, "", *parts])


def _returned(value: Callable[..., object]) -> Iterator[tuple[str, type]]:
    """Yield the classes that a public function returns and that are no public names, except sinks."""
    if inspect.isclass(value):
        return
    kind = get_type_hints(value).get("return")
    for each in (kind, *get_args(kind)):
        is_own = inspect.isclass(each) and each.__module__.startswith("topiclake.")
        if is_own and each.__name__ not in tl.__all__ and not issubclass(each, tl.Sink):
            yield each.__name__, each


def _signature(name: str, value: Callable[..., object]) -> str:
    """Return how a public name is called, a line for each parameter."""
    if inspect.isclass(value) and getattr(value, "_is_protocol", False):
        return f"class tl.{name}"
    lines, keyword_only = [], False
    signature = inspect.signature(value)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            lines.append("    *,")
        keyword_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        lines.append(f"    {stars}{parameter.name}{kind}{default},")
    returned = "" if inspect.isclass(value) else f" -> {_annotation(signature.return_annotation)}"
    return "\n".join([f"tl.{name}(", *lines, f"){returned}"]) if lines else f"tl.{name}(){returned}"


def _annotation(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _shown(default: object) -> str:
    """Return a default without the address that some objects print."""
    if inspect.isclass(default):
        return default.__name__
    return "…" if " at 0x" in repr(default) or "<factory>" in repr(default) else repr(default)


def _docstring(value: object) -> str:
    """Return a docstring as a page: its entries as a list, its example as code."""
    shown: list[str] = []
    section = ""
    for line in (inspect.getdoc(value) or "").splitlines():
        if match := re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields|Example):", line):
            shown += ["```"] if section == "Example" else []
            section = match[1]
            shown += ["", f"**{section}**", "", *(["```python"] if section == "Example" else [])]
        elif section == "Example":
            shown.append(line.removeprefix("    "))
        elif section in ENTRIES and (entry := re.fullmatch(r"    (\w[\w, .*]*): (.*)", line)):
            shown.append(f"- `{entry[1]}`: {entry[2]}")
        elif section:
            shown.append(f"  {line.strip()}" if line.strip() else "")
        else:
            shown.append(line)
    if section == "Example":
        while not shown[-1].strip():
            shown.pop()
        shown.append("```")
    return "\n".join(shown)


def _summary(value: object) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()).replace("|", "\\|")


def _notebooks() -> str:
    parts = [
        "# Notebooks and their parameters\n",
        "A parameter is a widget of the notebook, `-p name=value` of `topiclake run`, or of a job.\n",
    ]
    for file in sorted((PROJECT / "notebooks").rglob("*.py")):
        name = file.relative_to(PROJECT / "notebooks").with_suffix("").as_posix()
        cell = file.read_text("utf-8").partition("# COMMAND")[0]
        lines = [
            line.removeprefix("# MAGIC").removeprefix(" ") for line in cell.splitlines() if "# MAGIC" in line
        ]
        title = next(line.removeprefix("# ") for line in lines if line.startswith("# "))
        table = [line for line in lines if line.startswith("|")]
        link = f"../../notebooks/{name}.py"
        parts.append(
            "\n".join([f"## {name}\n", f"[{title}]({link})\n", *(table or ["It has no parameters."]), ""])
        )
    return "\n".join(parts)


def _errors() -> str:
    lines = [
        "# Errors\n",
        "Each error ends with the id of its class. Its `fields` have the values that the text names.\n",
        "The field `reason`, if an error has it, is one of the last column.\n",
        "| id | class | meaning | what to do | reasons |",
        "|---|---|---|---|---|",
    ]
    reasons = _reasons_of_errors()
    for module in ERRORS:
        import_module(module)
    known = (each for each in _with_subclasses(TopiclakeError) if each.__module__ in ERRORS)
    lines += [
        f"| {each.id} | `{each.__name__}` | {_summary(each)} | {_action(each)} | "
        f"{', '.join(f'`{reason}`' for reason in sorted(reasons.get(each.__name__, ())))} |"
        for each in sorted(known, key=lambda each: each.id)
    ]
    return "\n".join(lines)


def _action(error: type[TopiclakeError]) -> str:
    """Return the second paragraph of a class's docstring; the base class says how texts are made."""
    _, _, action = (inspect.getdoc(error) or "").partition("\n\n")
    return "" if error is TopiclakeError else " ".join(action.split()).replace("|", "\\|")


def _reasons_of_errors() -> dict[str, set[str]]:
    """Return the values of the field `reason` that the code sets, by class of errors."""
    reasons: dict[str, set[str]] = {}
    for file in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            for keyword in node.keywords:
                if keyword.arg != "reason":
                    continue
                choice = keyword.value
                values = (choice.body, choice.orelse) if isinstance(choice, ast.IfExp) else (choice,)
                texts = {each.value for each in values if isinstance(each, ast.Constant)}
                reasons.setdefault(node.func.id, set()).update(map(str, texts))
    return reasons


def _with_subclasses(error: type[TopiclakeError]) -> Iterator[type[TopiclakeError]]:
    yield error
    for each in error.__subclasses__():
        yield from _with_subclasses(each)


def _reasons() -> str:
    lines = [
        "# Reasons of quarantined records\n",
        "| reason | meaning | what to do | replay |",
        "|---|---|---|---|",
    ]
    for name, reason in REASONS.items():
        lines.append(
            f"| `{name}` | {reason.meaning} | {reason.remedy} | {'yes' if reason.may_replay else 'no'} |"
        )
    return "\n".join(lines)


def _tables() -> str:
    quarantine = f"<table_path>{QUARANTINE}"
    parts = [
        "# Tables that Topiclake writes\n",
        "The pipeline's own table has the columns of its values, which `topiclake plan` prints. "
        "The configuration adds these:\n",
        "| column | type | key of the configuration |",
        "|---|---|---|",
        f"| `{KAFKA_COLUMN}` | `STRUCT<partition INT, offset BIGINT>`; by `kafka_fields` also `topic STRING` "
        "and `timestamp TIMESTAMP` | `kafka_column`, `kafka_fields` |",
        f"| `{KEY_COLUMN}` | the type of the key | `key` |",
        f"| `{HEADERS_COLUMN}` | `ARRAY<STRUCT<key STRING, value BINARY>>` | `headers_column` |",
        f"| `{TOMBSTONE_COLUMN}` | `BOOLEAN`: the record has no value | `tombstones: keep` |",
        f"| `{CDC_COLUMN}` | `STRUCT<order, partition INT, offset BIGINT, deleted BOOLEAN, deleted_at "
        "TIMESTAMP>`; `order` has the columns of `changes.order` | `apply: upsert`, in place of the columns "
        "above |",
        f"| `{LATE_COLUMN}` | `STRUCT<start TIMESTAMP, end TIMESTAMP, watermark TIMESTAMP, batch_id BIGINT>` "
        "| none: tables of `late_batches` have it |",
        "",
        "The function `tl.quarantine_rows` reads the quarantine with the columns `replay` and `replayed_at` "
        "of the claims.\n",
    ]
    ddls = {
        f"`{quarantine}`: rejected records": quarantine_rows.SCHEMA,
        f"`{quarantine}{REPLAYS}`: claims of replays": _ddl(replay_claims.COLUMNS),
        "`<checkpoint_path>_paused`: offsets that a paused topic has missed": paused_topics.LEDGER_SCHEMA,
        "`<checkpoint_path>_schemas`: schemas that were looked up once": _ddl(schema_decisions.COLUMNS),
        "`path` of `notify_batches`: sent notifications": notifications.NOTIFICATIONS,
    }
    for title, ddl in ddls.items():
        columns = re.split(r", (?![^<]*>)", ddl)
        parts.append("\n".join([f"## {title}\n", "```sql", ",\n".join(columns), "```", ""]))
    for title, tables in {
        "Tables of `start_upsert`, in the database": _of_database(),
        "`data/monitoring.db` of the home: the dashboard (SQLite)": store.TABLES.strip(),
        "`jobs/jobs.db` of the home: job runs (SQLite)": run_records.TABLES.strip(),
    }.items():
        parts.append("\n".join([f"## {title}\n", "```sql", tables, "```", ""]))
    return "\n".join(parts)


def _ddl(columns: StructType) -> str:
    return ", ".join(f"{column.name} {column.dataType.simpleString().upper()}" for column in columns)


def _of_database() -> str:
    """Return the statements that create the tables of the sink in PostgreSQL."""
    tables = (jdbc_tables.batches("postgresql"), jdbc_tables.quarantine("postgresql", "<table>"))
    statements = (str(CreateTable(table).compile(dialect=postgresql.dialect())) for table in tables)
    return "\n".join(line.rstrip() for each in statements for line in each.strip().splitlines())


def _metrics() -> str:
    lines = [
        "# Metrics\n",
        "The dashboard serves them as `/metrics`. Each has the labels `query` and `query_id`.\n",
        "| metric | type | meaning | further labels |",
        "|---|---|---|---|",
    ]
    with TemporaryDirectory() as folder:
        text = exposition(Store(Path(folder, "monitoring.db"))).decode()
    further = {
        "topiclake_query_state": "`state`: " + ", ".join(f"`{state}`" for state in STATES),
        "topiclake_query_quarantined_records_total": "`reason`",
    }
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        (meaning,) = re.findall(rf"^# HELP {name} (.*)$", text, re.MULTILINE)
        labels = "`topic`, `partition`" if name.startswith("topiclake_partition_") else further.get(name, "")
        lines.append(f"| `{name}` | {kind} | {meaning} | {labels} |")
    return "\n".join(lines)


def _environment() -> str:
    lines = ["# Environment variables\n", "| variable | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items())])


if __name__ == "__main__":
    for page, text in pages().items():
        (PROJECT / "docs" / page).write_text(text, "utf-8")
