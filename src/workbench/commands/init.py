"""`topiclake init`: the configuration of a pipeline, from broker, registry and a sample of its topic."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from topiclake.config.load import load_settings, pipeline_names
from topiclake.config.secret import SecretReader
from topiclake.config.settings import Settings
from topiclake.config.table_name import is_name
from topiclake.errors import ConfigError, SubjectNotFoundError
from topiclake.reasons import TOMBSTONE, UNKNOWN_SCHEMA_ID
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.storage.mount import require_writable, resolve_table
from workbench.commands.topic_options import Request
from workbench.commands.topic_sample import (
    FORMATS,
    NO_FORMATS,
    PLAIN_AVRO,
    TopicSample,
    columns_of,
    read_sample,
)
from workbench.dbutils.secrets import Secrets
from workbench.host.files import write_all
from workbench.host.home import Home
from workbench.host.redaction import Redactor
from workbench.services import control as services

#: The environment of the embedded services.
LOCAL = "local"
#: The share of the sampled values that the proposed format must have.
CLEAR_SHARE = 0.8
_PIPELINE_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Proposal:
    """Keys of the pipeline that the sample suggests, each with the comment that explains it."""

    keys: Mapping[str, tuple[Any, str]]
    evidence: str
    partitions: int


@dataclass(frozen=True)
class CreatedPipeline:
    """A new pipeline: its files, and the sample that they follow."""

    files: tuple[Path, ...]
    sample: TopicSample
    proposal: Proposal


def create_pipeline(home: Home, request: Request) -> CreatedPipeline:
    """Write conf/pipelines/<name>.yaml and, for a new broker, conf/<env>.yaml.

    Nothing is written before broker, registry, topic and folder have been tried.

    Raises:
        ConfigError: The name is taken or not allowed, a value is wrong, or the sample shows no clear format.
        TopicNotFoundError, KafkaError, SchemaRegistryError, StorageError: A service cannot be used.
    """
    conf = home.project / "conf"
    _require_free(conf, request)
    env = request.env or (request.name if request.bootstrap else LOCAL)
    texts = _environment(conf, env, request)
    root = _storage_root(request.into)
    with services.exported(home):
        stored = Secrets(conf, Redactor())

        def read(scope: str, key: str) -> str:
            return request.logins[key] if key in request.logins else stored.get(scope, key)

        pipeline = conf / "pipelines" / f"{request.name}.yaml"
        # The pipeline's keys are not known yet: only the settings of broker, registry and storage are used.
        texts[pipeline] = _pipeline_text(request, env, root, Proposal({}, "", 0))
        settings = _load(conf, texts, request.name, read)
        require_writable(resolve_table(settings.storage, settings.pipeline.location))
        registry = SchemaRegistry.from_settings(settings.schema_registry)
        sample = read_sample(settings.kafka, registry, request.topic)
        proposal = propose(request, sample, registry)
        texts[pipeline] = _pipeline_text(request, env, root, proposal)
        _load(conf, texts, request.name, read)
    logins = {} if request.scope else request.logins
    secrets = {conf / "secrets" / env / key: secret for key, secret in logins.items()}
    # The pipeline is written last, since it makes the other files count.
    write_all(secrets | texts, private=secrets)
    return CreatedPipeline((*secrets, *texts), sample, proposal)


def require_same(home: Home, name: str, topic: str, into: str) -> None:
    """Check that an existing pipeline reads `topic`, and writes into `into`; "" is not compared.

    Raises:
        ConfigError: It reads or writes elsewhere.
    """
    file = home.project / "conf" / "pipelines" / f"{name}.yaml"
    keys = yaml.safe_load(file.read_text("utf-8")) if file.exists() else {}
    location = keys.get("table") or str(keys.get("table_path")).rpartition("/")[0]
    kind = "table" if is_name(into) or keys.get("table") else "folder"
    expected_location = into if is_name(into) else _storage_root(into) or location
    for key, actual, expected in (
        ("topic", keys.get("topic"), topic),
        (kind, location, expected_location),
    ):
        if expected not in ("", actual):
            raise ConfigError(
                f"pipeline {name} exists, and its {key} is {actual}, not {expected} (in {file})",
                f"topiclake ingest {name}, or topiclake init <another name> --topic <topic>",
                pipeline=name,
                key=key,
                found=actual,
                expected=expected,
            )


def _require_free(conf: Path, request: Request) -> None:
    if not _PIPELINE_NAME.fullmatch(request.name):
        raise ConfigError(
            f"{request.name!r} cannot be a pipeline's name: letters, digits, '_', '-' and '.' are allowed",
            "topiclake init orders --topic <topic>",
            pipeline=request.name,
            reason="name",
        )
    if request.name in pipeline_names(conf):
        raise ConfigError(
            f"pipeline {request.name} exists already in {conf}",
            f"topiclake plan {request.name}, or init with another name",
            pipeline=request.name,
            reason="exists",
        )


def _environment(conf: Path, env: str, request: Request) -> dict[Path, str]:
    """Return the file of a new environment and its text; nothing where an existing one is used."""
    file = conf / f"{env}.yaml"
    if not request.bootstrap:
        if file.exists():
            return {}
        raise ConfigError(
            f"environment {env} does not exist: {file}",
            f"topiclake init {request.name} --env {env} --bootstrap <host:port> --registry <url>",
            env=env,
            reason="missing",
        )
    if file.exists():
        raise ConfigError(
            f"environment {env} exists already: {file}",
            f"topiclake init {request.name} --env {env} without --bootstrap, or another --env",
            env=env,
            reason="exists",
        )
    if is_name(request.into):
        raise ConfigError(
            f"a new environment needs a store, and --into names the table {request.into}",
            f"topiclake init {request.name} --bootstrap {request.bootstrap} --into <folder or store>, then "
            f"table: {request.into} in the pipeline's file",
            env=env,
            reason="incomplete",
        )
    for option, value in (("--registry", request.registry), ("--into", _storage_root(request.into))):
        if not value:
            remedy = f"topiclake init {request.name} --bootstrap {request.bootstrap} {option} <value>"
            raise ConfigError(f"a new environment needs {option}", remedy, env=env, reason="incomplete")
    # Notebooks run in another folder than this command.
    ca_file = {"ca_file": str(Path(request.ca_file).expanduser().resolve())} if request.ca_file else {}
    sections: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrap_servers": request.bootstrap, **request.kafka, **ca_file},
        "schema_registry": {"url": request.registry, **ca_file},
        "storage": {"source": _storage_root(request.into), "mounted": False},
    }
    scope = request.scope or env
    for key in request.logins:
        section, _, name = key.partition("-")
        section = "schema_registry" if section == "registry" else section
        sections[section][name.replace("-", "_")] = f"{{{{secrets/{scope}/{key}}}}}"
    location = f"the scope {scope}" if request.scope else f"conf/secrets/{scope}, which git ignores"
    header = [f"# Broker, registry and store of pipeline {request.name}, written by `topiclake init`."]
    if request.logins:
        header.append(f"# Secrets are in {location}.")
    return {file: "\n".join([*header, yaml.safe_dump(sections, sort_keys=False)])}


def _storage_root(into: str) -> str:
    """Return the address of a folder or a store; "" for the environment's own: none is given, or a table."""
    if is_name(into):
        return ""
    if not into or re.match(r"[a-zA-Z][\w+.-]*:", into) or into.startswith("/Volumes/"):
        return into.rstrip("/")
    return Path(into).expanduser().resolve().as_uri()


def _load(conf: Path, texts: Mapping[Path, str], name: str, read: SecretReader) -> Settings:
    """Return the settings that the new files will have, which are not in `conf` yet.

    Raises:
        ConfigError: A value is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="topiclake-init-") as folder:
        trial = Path(folder)
        for file in conf.glob("*.yaml"):
            if file.name != "secrets.yaml":
                shutil.copy(file, trial)
        for file, text in texts.items():
            copy = trial / file.relative_to(conf)
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(text, "utf-8")
        try:
            return load_settings(name, {}, secrets=read, conf=trial)
        except ConfigError as error:
            cause = error.cause.replace(folder, str(conf))
            raise ConfigError(cause, error.remedy, **error.fields) from None


def propose(request: Request, sample: TopicSample, registry: SchemaRegistry) -> Proposal:
    """Return the keys that decide how values and keys are decoded, from a sample.

    Raises:
        ConfigError: No format has four fifths of the sampled values, or no subject is the topic's.
    """
    counts = ", ".join(f"{name}: {count}" for name, count in sample.formats.most_common())
    evidence = f"{counts} of the newest {sum(sample.formats.values())} values" if counts else "no record yet"
    value_format = request.value_format or _clear_format(request, sample, registry)
    keys: dict[str, tuple[Any, str]] = {}
    is_plain = value_format == PLAIN_AVRO
    keys["value_format"] = (
        "avro" if is_plain else value_format,
        "format of the values; records of another one go to quarantine",
    )
    if is_plain:
        keys["avro_form"] = "plain", "values name no schema: each has the newest version that it fits"
    if value_format == "json":
        keys["value_schema"] = columns_of(sample.documents) or "value STRING", "columns of the table as DDL"
    if value_format in FORMATS.values():
        keys |= _subjects(request.topic, sample, registry)
    key_format, key_evidence = _key_format(request.topic, value_format, sample, registry)
    if key_format:
        keys["key"] = key_format, "format of the keys, for the column _key; none: no such column"
    if key_format == "json":
        keys["key_schema"] = columns_of(sample.key_documents) or "key STRING", "columns of the keys as DDL"
    return Proposal(keys, evidence + key_evidence, sample.partitions)


def _key_format(
    topic: str, value_format: str, sample: TopicSample, registry: SchemaRegistry
) -> tuple[str, str]:
    """Return the format that the sampled keys suggest, or "", and a text that says why."""
    counted = Counter({name: n for name, n in sample.keys.items() if name != "none"})
    if not counted:
        return "", ""
    counts = ", ".join(f"{name}: {count}" for name, count in counted.most_common())
    evidence = f"; keys: {counts}"
    (name, most), *_ = counted.most_common(1)
    if most < CLEAR_SHARE * counted.total() or name == UNKNOWN_SCHEMA_ID:
        return "", f"{evidence} (no clear format: no column _key)"
    if name not in FORMATS.values():
        return {"text": "string"}.get(name, name), evidence
    if value_format not in (*FORMATS.values(), PLAIN_AVRO):
        return "", f"{evidence} (a key of {name} needs values of the registry: no column _key)"
    if f"{topic}-key" not in registry.subjects():
        return "", f"{evidence} (the registry has no subject {topic}-key: no column _key)"
    return name, evidence


def _clear_format(request: Request, sample: TopicSample, registry: SchemaRegistry) -> str:
    known = Counter({name: n for name, n in sample.formats.items() if name not in NO_FORMATS})
    if not known:
        return _registered_format(request, sample, registry)
    (name, most), *_ = known.most_common(1)
    # The registry may learn a schema id later, so such a value does not speak against its formats.
    ignored = (TOMBSTONE, UNKNOWN_SCHEMA_ID) if name in FORMATS.values() else (TOMBSTONE,)
    counted = Counter({name: n for name, n in sample.formats.items() if name not in ignored})
    if most >= CLEAR_SHARE * counted.total():
        return name
    counts = ", ".join(f"{name}: {count}" for name, count in counted.most_common())
    raise ConfigError(
        f"topic {request.topic} has values of several formats ({counts})",
        f"topiclake init {request.name} --format <format>: values of other formats then go to quarantine",
        topic=request.topic,
        reason="mixed",
        found=counts,
    )


def _registered_format(request: Request, sample: TopicSample, registry: SchemaRegistry) -> str:
    """Return the format of the topic's subject, where no value says one.

    Raises:
        ConfigError: There is no such subject.
    """
    try:
        return FORMATS[registry.latest(f"{request.topic}-value").schema_type]
    except SubjectNotFoundError:
        values = "no value of a known format" if sample.formats else "no record"
        raise ConfigError(
            f"topic {request.topic} has {values}, and {request.topic}-value is not in the schema registry",
            f"topiclake init {request.name} --format <format>, once you know the format of its values",
            topic=request.topic,
            reason="no_format",
        ) from None


def _subjects(topic: str, sample: TopicSample, registry: SchemaRegistry) -> dict[str, tuple[Any, str]]:
    """Return the strategy that names the subjects of the sampled schemas."""
    subjects = set(registry.subjects())
    if f"{topic}-value" in subjects or not sample.schema_ids:
        return {}
    schemas = [schema for schema_id in sample.schema_ids if (schema := registry.by_id(schema_id))]
    names = sorted({name for schema in schemas if (name := _record_name(schema.schema))})
    for strategy, prefix in (("topic_record_name", f"{topic}-"), ("record_name", "")):
        if names and all(f"{prefix}{name}" in subjects for name in names):
            return {
                "subject_strategy": (strategy, f"subject {prefix}{names[0]}"),
                "record_names": (names, "records of another name are looked up by their schema id"),
            }
    raise ConfigError(
        f"no subject of the schema registry at {registry.url} belongs to topic {topic}: {topic}-value, or "
        f"{', '.join(f'{topic}-{name}' for name in names) or f'{topic}-<record>'}",
        "set subject_strategy and record_names (docs/kafka.md) in a file of your own below conf/pipelines/",
        topic=topic,
        reason="no_subject",
    )


def _record_name(schema: str) -> str:
    """Return the full name of an Avro record; "" of anything else."""
    try:
        parsed = json.loads(schema)
    except ValueError:
        return ""
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        return ""
    name, space = parsed["name"], parsed.get("namespace", "")
    return name if "." in name or not space else f"{space}.{name}"


def _table(request: Request, tables: str) -> dict[str, tuple[Any, str]]:
    if is_name(request.into):
        return {"table": (request.into, "the quarantine has the suffix _quarantine")}
    quarantine = f"the quarantine is {request.name}_quarantine in the same folder"
    return {"table_path": (f"{tables}/{request.name}", quarantine)}


def _pipeline_text(request: Request, env: str, root: str, proposal: Proposal) -> str:
    """Return the file of the pipeline: its keys, each with a comment."""
    name = request.name
    tables = root or "/mnt/datalake/delta"
    keys: dict[str, tuple[Any, str]] = {
        "env": (env, f"conf/{env}.yaml says where broker, registry and store are"),
        "topic": (request.topic, f"a Spark task reads each of its partitions, {proposal.partitions} for now"),
        # For a trial without a sample.
        "value_format": ("text", ""),
        **proposal.keys,
        "starting_offsets": (
            "earliest",
            "of the first run: earliest, latest, or a time: 2026-01-01T00:00:00Z",
        ),
        "mode": ("PERMISSIVE", "bad records go to quarantine; FAILFAST ends the run at the first one"),
        "trigger": ("availableNow", "reads what Kafka holds and ends; `10 seconds` runs all the time"),
        "view": (re.sub(r"\W", "_", name), "the name of the table in SQL"),
        **_table(request, tables),
        "checkpoint_path": (f"{tables}/_checkpoints/{name}", "the state of the query: one for each table"),
    }
    lines = [
        f"# Topic {request.topic} into a Delta table, written by `topiclake init`.",
        f"# Sample: {proposal.evidence}.",
    ]
    for key, (value, comment) in keys.items():
        lines.append(f"# {comment}")
        lines.append(yaml.safe_dump({key: value}, width=10_000, allow_unicode=True).strip())
    return "\n".join(lines) + "\n"
