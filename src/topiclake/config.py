"""One typed configuration: conf/base.yaml < conf/<env>.yaml < widgets and job parameters."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
)

from topiclake.errors import ConfigError

#: A secret is a reference to a scope and a key, as in Databricks' own job files.
SECRET_REFERENCE = re.compile(r"^\{\{secrets/([\w.@-]+)/([\w.@-]+)\}\}$")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
#: What a widget holds when the configuration files decide.
UNSET = ("", "from conf")

SecretReader = Callable[[str, str], str]


class Secret:
    """A reference `{{secrets/scope/key}}`, resolved when it is used and never printed."""

    def __init__(self, scope: str, key: str, read: SecretReader | None) -> None:
        self._scope, self._key, self._read = scope, key, read

    @property
    def name(self) -> str:
        """Scope and key."""
        return f"{self._scope}/{self._key}"

    def reveal(self) -> str:
        """Return the secret's value.

        Raises:
            ConfigError: Nothing was given that can read secrets, or it does not know this one.
        """
        if self._read is None:
            raise ConfigError(
                f"the secret {self._scope}/{self._key} is asked for, but nothing here can read secrets",
                "pass secrets=dbutils.secrets.get to load_settings",
            )
        return self._read(self._scope, self._key)

    def __repr__(self) -> str:
        return f"Secret({self._scope}/{self._key}, [REDACTED])"


def _parse_secret(value: object, info: ValidationInfo) -> Secret:
    if isinstance(value, Secret):
        return value
    match = SECRET_REFERENCE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a reference {{secrets/<scope>/<key>}}, never the secret itself")
    return Secret(match[1], match[2], (info.context or {}).get("secrets"))


def _parse_offsets(value: object) -> object:
    """Accept earliest, latest, or Kafka's JSON of offsets for each partition."""
    if isinstance(value, str) and value not in ("earliest", "latest"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(
                'must be earliest, latest or JSON like {"gps": {"0": 23, "1": -2}} (-2: earliest, -1: latest)'
            ) from error
    return value


def _check_offsets(value: object, info: ValidationInfo) -> object:
    """Spark takes the offsets of the topic that it reads, and of no other."""
    topic = info.data.get("topic")
    if isinstance(value, dict) and topic is not None and set(value) != {topic}:
        raise ValueError(f"must be those of topic {topic} alone")
    return value


def _check_trigger(value: str) -> str:
    if value != "availableNow" and not re.fullmatch(r"\d+ (second|minute|hour)s?", value):
        raise ValueError("must be availableNow or an interval such as '10 seconds'")
    return value


SecretReference = Annotated[Secret, BeforeValidator(_parse_secret), PlainSerializer(repr)]
StartingOffsets = Annotated[
    Literal["earliest", "latest"] | dict[str, dict[str, int]],
    BeforeValidator(_parse_offsets),
    AfterValidator(_check_offsets),
]
Trigger = Annotated[str, AfterValidator(_check_trigger)]
Text = Annotated[str, Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class KafkaSettings(_Section):
    """How to reach the broker."""

    bootstrap_servers: Text
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: SecretReference | None = None
    password: SecretReference | None = None
    #: A PEM file with the authorities to trust, where the system's own do not do.
    ca_file: Path | None = None
    #: Consumer settings as Kafka names them, without the prefix `kafka.`.
    consumer: dict[str, str | int] = Field(default_factory=dict)

    @property
    def is_sasl(self) -> bool:
        """Tell whether the broker asks for a login."""
        return self.security_protocol.startswith("SASL")


class SchemaRegistrySettings(_Section):
    """How to reach the schema registry."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    username: SecretReference | None = None
    password: SecretReference | None = None
    ca_file: Path | None = None


class StorageSettings(_Section):
    """Where tables and checkpoints live: a source, mounted at a mount point."""

    source: Text
    mount_point: Annotated[str, Field(pattern=r"^/mnt/[\w.-]+$")]
    #: For wasbs: the shared access signature of the container.
    sas_token: SecretReference | None = None


class PipelineSettings(_Section):
    """One topic into one table."""

    topic: Text
    starting_offsets: StartingOffsets = "earliest"
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE"
    trigger: Trigger = "availableNow"
    max_offsets_per_trigger: Annotated[int, Field(gt=0)] | None = None
    view: Annotated[str, Field(pattern=r"^\w+$")]
    table_path: Text
    checkpoint_path: Text
    #: Whether rows carry `_kafka STRUCT<partition INT, offset LONG>`; without it nothing can be audited.
    kafka_column: bool = True
    #: Table properties of Delta and Parquet, set when the table is created.
    table_properties: dict[str, str] = Field(default_factory=dict)

    @property
    def quarantine_path(self) -> str:
        """The table of the records that are not in `table_path`, beside it."""
        return f"{self.table_path.rstrip('/')}_quarantine"


class Settings(_Section):
    """The whole configuration of one pipeline."""

    env: str
    name: str
    kafka: KafkaSettings
    schema_registry: SchemaRegistrySettings
    storage: StorageSettings
    pipeline: PipelineSettings
    #: Names this run in the tables' histories.
    run_id: str = Field(default_factory=lambda: uuid4().hex)
    #: When the configuration was read, in UTC.
    loaded_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))


def load_settings(
    name: str,
    parameters: Mapping[str, str],
    *,
    secrets: SecretReader | None = None,
    conf: Path | None = None,
) -> Settings:
    """Read the configuration of the pipeline `name`.

    Args:
        name: A key of `pipelines` in the configuration files.
        parameters: Values of widgets or a job; `env` names the second file, `storage` the mount's source,
            every other one is a key of the pipeline. "" and "from conf" leave the files' value.
        secrets: What resolves secrets, usually `dbutils.secrets.get`.
        conf: The folder of the files; by default the nearest `conf` at or above the working directory.

    Raises:
        ConfigError: A file, key, value or environment variable is missing, unknown or of the wrong type.
    """
    given = {key: value for key, value in parameters.items() if value not in UNSET}
    env = given.pop("env", "local")
    folder = conf or find_conf()
    files = [folder / "base.yaml", folder / f"{env}.yaml"]
    merged: dict[str, Any] = {}
    for file in files:
        merged = _merge(merged, _read_yaml(file))
    pipelines = merged.pop("pipelines", None) or {}
    if name not in pipelines:
        raise ConfigError(
            f"pipeline '{name}' is not in {folder}; there are: {', '.join(pipelines) or 'none'}",
            "add it under `pipelines` in base.yaml",
        )
    if "storage" in given:
        merged = _merge(merged, {"storage": {"source": given.pop("storage")}})
    merged |= {"env": env, "name": name, "pipeline": _merge(pipelines, {name: given})[name]}
    return _validate(_expand(merged, files), files, set(given), secrets)


def find_conf(start: Path | None = None) -> Path:
    """Return the nearest folder `conf` with a `base.yaml`, at or above `start` (the working directory)."""
    start = start or Path.cwd()
    for folder in [start, *start.parents]:
        if (folder / "conf" / "base.yaml").is_file():
            return folder / "conf"
    raise ConfigError(f"no conf/base.yaml at or above {start}", "run it in the project's folder")


def _read_yaml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        there = sorted(
            path.stem for path in file.parent.glob("*.yaml") if path.stem not in ("base", "secrets")
        )
        raise ConfigError(
            f"{file} does not exist; environments here: {', '.join(there) or 'none'}", "env=local"
        )
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
    except yaml.MarkedYAMLError as error:
        # Without the line's text, which str(error) has: a password may stand in it.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}, line {line} is not YAML: {error.problem}", "mend that line") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {type(error).__name__}", "mend the file") from None
    if not isinstance(content or {}, dict):
        raise ConfigError(f"{file} must hold keys and values, not {type(content).__name__}")
    return content or {}


def _merge(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _expand(value: Any, files: list[Path], key: str = "") -> Any:  # noqa: ANN401 (YAML)
    """Put environment variables in place of `${NAME}` and `${NAME:-default}`."""
    if isinstance(value, dict):
        return {name: _expand(inner, files, f"{key}.{name}".lstrip(".")) for name, inner in value.items()}
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ConfigError(
                f"{key} in {' or '.join(map(str, files))} needs the environment variable {match[1]}, "
                "which is not set",
                "python -m workbench up, and run the notebook with python -m workbench run"
                if match[1].startswith("WORKBENCH_")
                else f"export {match[1]}=…",
            )
        return found

    return _VARIABLE.sub(replace, value)


def _validate(
    merged: dict[str, Any], files: list[Path], given: set[str], secrets: SecretReader | None
) -> Settings:
    try:
        return Settings.model_validate(merged, context={"secrets": secrets})
    except ValidationError as error:
        raise ConfigError(_first_problem(error, files, given)) from None


def _first_problem(error: ValidationError, files: list[Path], given: set[str]) -> str:
    """Say in one sentence which key of which file is wrong, and what is allowed."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"] if not str(part).startswith("function-")]
    key = path[1] if path[0] == "pipeline" and len(path) > 1 else ".".join(path)
    place = f"parameter {key}" if key in given else f"{'.'.join(path)} in {' or '.join(map(str, files))}"
    if problem["type"] == "extra_forbidden":
        return f"{place} is unknown; allowed: {', '.join(_allowed(path[:-1]))}"
    if problem["type"] == "missing":
        return f"{place} is missing"
    return f"{place} is wrong: {problem['msg'].removeprefix('Value error, ')} (found {_shown(problem)})"


def _shown(problem: Any) -> str:  # noqa: ANN401 (pydantic's ErrorDetails)
    """Show the wrong value, unless it may be a secret that somebody wrote into the file."""
    secret = any(str(part) in ("username", "password", "sas_token") for part in problem["loc"])
    return "[REDACTED]" if secret else repr(problem["input"])


def _allowed(path: list[str]) -> list[str]:
    model: Any = Settings
    for part in path:
        model = model.model_fields[part].annotation
    return sorted(set(model.model_fields) - {"env", "name", "run_id", "loaded_at"})
