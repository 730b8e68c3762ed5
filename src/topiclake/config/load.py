"""One typed configuration, of files and parameters.

conf/base.yaml < conf/pipelines/<name>.yaml < conf/<env>.yaml < widgets and job parameters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from topiclake.config.secret import SecretReader
from topiclake.config.settings import Settings
from topiclake.config.storage import ACCESS
from topiclake.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
#: Keys whose value may be a secret that somebody wrote into a file.
SECRET_KEYS = {"username", "password", "client_secret", "token", "token_url"}.union(
    *(way for ways in ACCESS.values() for way in ways)
)
#: A value that may hold a login, against the rules.
LOGIN_URL = ("database", "url")
#: Keys whose value names code that is loaded: who may set a job's parameters need not be who may run code.
CODE_KEYS = ("deserializer", "deserializer_config", "changes")
#: Keys of a pipeline of which a layer's key replaces a lower layer's other key.
_EITHER = (("table", "table_path"), ("table_path", "table"))
#: The choice of a dropdown that keeps the value of the configuration files.
FROM_CONF = "from conf"
#: The variable that Databricks sets on clusters and on serverless.
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
#: By parameter that is no key of the pipeline, the key of the settings.
_PARAMETERS = {"storage": "storage.source", "env": "env"}
#: The values of a widget that keep the value of the configuration files.
UNSET = ("", FROM_CONF)


def load_settings(
    name: str,
    parameters: Mapping[str, str],
    *,
    secrets: SecretReader | None = None,
    conf: Path | None = None,
) -> Settings:
    """Read the configuration of the pipeline `name`.

    Args:
        name: The name of a file in `pipelines/`, or a key of `pipelines` in one of the other files.
        parameters: Values of widgets or a job. Parameter `env` names the file of the environment; its default
            is `env` in the pipeline's file, else `databricks` on Databricks and `local` elsewhere. Parameter
            `storage` is the source of the mount. Every other parameter is a key of the pipeline. The values
            "" and "from conf" keep the files' value.
        secrets: The function that resolves secrets, usually `dbutils.secrets.get`.
        conf: The folder of the files; by default the nearest `conf` at or above the working directory.

    Raises:
        ConfigError: A file, key, value or environment variable is missing, unknown or of the wrong type.

    Example:
        >>> settings = tl.load_settings(
        ...     "readings", dbutils.widgets.getAll(), secrets=dbutils.secrets.get, conf=conf
        ... )
    """
    given = {key: value for key, value in parameters.items() if value not in UNSET}
    _refuse_code(name, given)
    folder = conf or find_conf()
    named = set(given)
    env, layers = _read_layers(name, folder, given.pop("env", None))
    files, merged = list(layers), reduce(_merge, layers.values())
    pipelines = merged.pop("pipelines", None) or {}
    require_pipeline(name, {*pipelines, *_pipeline_files(folder)}, folder)
    origins = _origins(name, folder, layers, named)
    if "storage" in given:
        merged = _merge(merged, {"storage": {"source": given.pop("storage")}})
    merged |= {"env": env, "name": name, "pipeline": _merge(pipelines, {name: _upper(given)})[name]}
    merged["origins"] = origins
    return _validate(_expand(merged, files), files, named, secrets)


def _refuse_code(name: str, given: Mapping[str, str]) -> None:
    for key in CODE_KEYS:
        if key in given:
            raise ConfigError(
                f"{key} is a parameter, and it loads or holds code, so only a file may say it",
                f"put it into conf/pipelines/{name}.yaml",
                parameter=key,
                reason="code",
            )


def _read_layers(name: str, folder: Path, env: str | None) -> tuple[str, dict[Path, dict[str, Any]]]:
    """Return the name of the environment, and the content of each file, the lowest layer first."""
    own = _pipeline_files(folder).get(name)
    of_pipeline = {} if own is None else _read_yaml(own)
    named_env = {"env": of_pipeline.pop("env")} if "env" in of_pipeline else {}
    env = env or named_env.get("env") or ("databricks" if _DATABRICKS in os.environ else "local")
    base, of_env = folder / "base.yaml", folder / f"{env}.yaml"
    layers = {base: _read_yaml(base)}
    if own is not None:
        layers[own] = named_env | {"pipelines": {name: of_pipeline}}
    layers[of_env] = _read_yaml(of_env)
    return env, layers


def _origins(
    name: str, folder: Path, layers: Mapping[Path, Mapping[str, Any]], parameters: Iterable[str]
) -> dict[str, str]:
    """Return by key, such as `kafka.bootstrap_servers`, the file or the word `parameter` that sets it."""
    origins: dict[str, str] = {}
    for file, content in layers.items():
        sections = {key: value for key, value in content.items() if key != "pipelines"}
        pipeline = (content.get("pipelines") or {}).get(name) or {}
        shown = str(file.relative_to(folder.parent))
        if pipeline:
            origins.setdefault("name", shown)
        for path, _ in leaves(sections | {"pipeline": pipeline}):
            origins[path] = shown
    for key in parameters:
        origins[_PARAMETERS.get(key, f"pipeline.{key}")] = "parameter"
    return origins


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings, each with its keys joined by dots."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    elif path:
        yield path, value


def _upper(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters; one that selects topics clears the other keys that would select some."""
    for key in ("topic", "topic_pattern", "assign"):
        if key in given:
            # With a pattern, `topic` selects nothing.
            others = {"topic": {"topic_pattern", "assign"}, "topic_pattern": {"assign"}}
            return {**dict.fromkeys(others.get(key, {"topic", "topic_pattern"})), **given}
    return dict(given)


def require_pipeline(name: str, known: Collection[str], conf: Path) -> None:
    """Raise a ConfigError if a pipeline is not one of the `known` pipelines of the folder `conf`."""
    if name not in known:
        known = sorted(known)
        raise ConfigError(
            f"pipeline '{name}' is not in {conf}; there are: {', '.join(known) or 'none'}",
            f"topiclake init {name} --topic <topic>, or add {conf / 'pipelines' / f'{name}.yaml'}",
            pipeline=name,
            reason="unknown",
            allowed=tuple(known),
        )


def first_pipeline(conf: Path) -> str:
    """Return the name of a pipeline, for callers that need only the shared sections: the services.

    Raises:
        ConfigError: `conf`/base.yaml is missing or is wrong, or there is no pipeline.
    """
    names = pipeline_names(conf)
    if not names:
        raise ConfigError(
            f"no pipeline is in {conf}",
            f"add {conf / 'pipelines' / '<name>.yaml'}",
            path=str(conf),
            reason="no_pipeline",
        )
    return names[0]


def pipeline_names(conf: Path) -> list[str]:
    """Return the names of the pipelines that conf/base.yaml and conf/pipelines/ have.

    Raises:
        ConfigError: `conf`/base.yaml is missing or is wrong.
    """
    return [*map(str, _read_yaml(conf / "base.yaml").get("pipelines") or {}), *_pipeline_files(conf)]


def _pipeline_files(conf: Path) -> dict[str, Path]:
    """Return the files of pipelines by the pipelines' names."""
    return {file.stem: file for file in sorted((conf / "pipelines").glob("*.yaml"))}


def find_conf(start: Path | None = None) -> Path:
    """Return the nearest folder `conf` with a `base.yaml`, at or above `start` (the working directory)."""
    start = start or Path.cwd()
    for folder in [start, *start.parents]:
        if (folder / "conf" / "base.yaml").is_file():
            return folder / "conf"
    raise ConfigError(
        f"no conf/base.yaml at or above {start}", "run it in the project's folder", path=str(start)
    )


def environments(folder: Path) -> list[str]:
    """Return the names of the environments that have a file in `folder`."""
    return sorted(path.stem for path in folder.glob("*.yaml") if path.stem not in ("base", "secrets"))


def _read_yaml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        known = environments(file.parent)
        raise ConfigError(
            f"{file} does not exist; environments here: {', '.join(known) or 'none'}",
            "use an environment that has a file, such as env=local",
            file=str(file),
            reason="missing",
            allowed=tuple(known),
        )
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
    except yaml.MarkedYAMLError as error:
        # Not str(error), which holds the line's text: it may contain a password.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        cause, named = f"{file}, line {line} is not YAML: {error.problem}", {"file": str(file), "line": line}
        raise ConfigError(cause, "fix that line", **named, reason="no_yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        cause = f"{file} is not YAML: {type(error).__name__}"
        raise ConfigError(cause, "fix the file", file=str(file), reason="no_yaml") from None
    if not isinstance(content or {}, dict):
        cause = f"{file} must hold keys and values, not {type(content).__name__}"
        raise ConfigError(
            cause, "fix the file", file=str(file), reason="no_mapping", found=type(content).__name__
        )
    return content or {}


def _merge(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, other in _EITHER:
        if key in upper and other not in upper:
            merged.pop(other, None)
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
        value = os.environ.get(match[1], match[2])
        if value is None:
            raise ConfigError(
                f"{key} in {' or '.join(map(str, files))} needs the environment variable {match[1]}, "
                "which is not set",
                "run python -m workbench up, and the notebook with python -m workbench run"
                if match[1].startswith("WORKBENCH_")
                else f"export {match[1]}=…",
                key=key,
                files=tuple(map(str, files)),
                variable=match[1],
                reason="unset_variable",
            )
        return value

    return _VARIABLE.sub(replace, value)


def _validate(
    merged: dict[str, Any], files: list[Path], given: set[str], secrets: SecretReader | None
) -> Settings:
    try:
        return Settings.model_validate(merged, context={"secrets": secrets})
    except ValidationError as error:
        raise _first_problem(error, files, given) from None


def _first_problem(error: ValidationError, files: list[Path], given: set[str]) -> ConfigError:
    """Say in one sentence which key of which file is wrong, and what is allowed."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"] if not str(part).startswith(("function-", "[key]"))]
    key = path[1] if path[0] == "pipeline" and len(path) > 1 else ".".join(path)
    key = "storage" if key == "storage.source" else key  # which is the parameter's name
    where = f"parameter {key}" if key in given else f"{'.'.join(path)} in {' or '.join(map(str, files))}"
    remedy = f"pass -p {key}=<an allowed value>, or leave it empty" if key in given else f"correct {key}"
    named: dict[str, object] = {"key": ".".join(path), "files": tuple(map(str, files))}
    named = {"parameter": key} if key in given else named
    if problem["type"] == "extra_forbidden":
        allowed = _allowed(path[:-1])
        cause = f"{where} is unknown; allowed: {', '.join(allowed)}"
        return ConfigError(cause, remedy, **named, reason="unknown", allowed=tuple(allowed))
    if problem["type"] == "missing":
        # The files are base.yaml, the pipeline's own if it has one, and the environment's.
        file = files[-2:][0] if path[0] == "pipeline" else files[-1]
        return ConfigError(f"{where} is missing", f"add {key} to {file}", **named, reason="missing")
    wrong, shown = problem["msg"].removeprefix("Value error, "), _shown(problem)
    cause = f"{where} is wrong: {wrong} (found {shown})"
    return ConfigError(cause, remedy, **named, reason="wrong", found=shown, expected=wrong)


def _shown(problem: Any) -> str:  # noqa: ANN401 (pydantic's ErrorDetails)
    """Show the wrong value, unless it may be a secret that somebody wrote into the file."""
    secret = any(str(part) in SECRET_KEYS for part in problem["loc"]) or problem["loc"] == LOGIN_URL
    return "[REDACTED]" if secret else repr(problem["input"])


def _allowed(path: list[str]) -> list[str]:
    model: Any = Settings
    for part in path:
        kind = model.model_fields[part].annotation
        # Of `X | None`, X.
        model = next(iter(get_args(kind)), kind)
    return sorted(set(model.model_fields) - {"env", "name", "run_id", "loaded_at", "origins"})
