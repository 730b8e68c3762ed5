"""The parameters of a notebook: their widgets, and the settings that their values give."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from topiclake.config.load import FROM_CONF, environments, find_conf, load_settings
from topiclake.config.pipeline import PipelineSettings
from topiclake.config.settings import Settings
from topiclake.errors import ConfigError

_LOG = logging.getLogger(__name__)
#: Parameters that are settings of a pipeline, in addition to `env` and `pipeline`; `decode_key` is the former
#: name of `key: avro`.
KEYS = frozenset({*PipelineSettings.model_fields, "storage", "decode_key"})


def notebook_settings(
    dbutils: Any,  # noqa: ANN401 (the platform's own)
    /,
    *keys: str,
    pipeline: str | Sequence[str] = ("",),
    env: str = FROM_CONF,
    conf: Path | None = None,
    **defaults: str | Sequence[str],
) -> Settings:
    """Define the widgets of a notebook, and return the settings of its pipeline.

    A widget `env` offers the environments. A job passes its parameters to all of its tasks. Parameters that
    the notebook does not declare are therefore ignored, with one line in the log.

    Args:
        dbutils: The platform's, or the workbench's.
        keys: Keys of the pipeline, or `storage`, that have a widget; it is empty, or `from conf`, at first.
        pipeline: The name of the pipeline, or several names. A widget `pipeline` then offers them; the first
            is its default. Every key of the pipeline is then a parameter, also without a widget.
        env: The default of the widget `env`; `from conf` is that of the pipeline's file, else `databricks`
            on Databricks and `local` elsewhere.
        conf: The folder of the files; by default the nearest `conf` at or above the working directory.
        defaults: Further widgets by their names. Text is the default of a text widget, several texts are the
            choices of a dropdown, the first its default. One whose name is a key of the pipeline is a
            setting. Any other is the notebook's own, which reads it by `dbutils.widgets.get`.

    Raises:
        ConfigError: A key is unknown, or a file, key or value is, as in `load_settings`.

    Example:
        >>> settings = tl.notebook_settings(
        ...     dbutils, "topic", "mode", "storage", pipeline="readings", live=["no", "yes"], conf=conf
        ... )
        >>> settings.pipeline.mode, dbutils.widgets.get("live")
        ('PERMISSIVE', 'no')
    """
    widgets, folder = dbutils.widgets, conf or find_conf()
    for key in keys:
        _require_known(key)
    widgets.combobox("env", env, [*dict.fromkeys((env, FROM_CONF, *environments(folder)))])
    declared = {"env"}
    if not isinstance(pipeline, str):
        widgets.combobox("pipeline", pipeline[0], list(pipeline))
        declared.add("pipeline")
        keys = (*keys, *sorted(widgets.getAll().keys() & KEYS))
    for name, default in ({key: _unset(key) for key in keys} | defaults).items():
        declared.add(name)
        if isinstance(default, str):
            widgets.text(name, default)
        else:
            widgets.dropdown(name, default[0], list(default))
    values = widgets.getAll()
    if ignored := sorted(values.keys() - declared):
        _LOG.warning("ignored parameters that the notebook does not declare: %s", ", ".join(ignored))
    settings = {name: values[name] for name in declared & (KEYS | {"env"})}
    chosen = pipeline if isinstance(pipeline, str) else values["pipeline"]
    return load_settings(chosen, settings, secrets=dbutils.secrets.get, conf=folder)


def _require_known(key: str) -> None:
    if key not in KEYS:
        allowed = sorted(KEYS)
        near = difflib.get_close_matches(key, allowed, n=1)
        raise ConfigError(
            f"'{key}' is not a key of a pipeline; allowed: {', '.join(allowed)}",
            f'use "{near[0]}"'
            if near
            else f'add {key}="<its default>", if it is a parameter of the notebook itself',
            parameter=key,
            reason="unknown",
            allowed=tuple(allowed),
        )


def _unset(key: str) -> str | Sequence[str]:
    """Return the default of a key's widget, with the choices of a key that has some: the files decide."""
    kind: Any = PipelineSettings.model_fields[key].annotation if key in PipelineSettings.model_fields else str
    parts = [part for part in get_args(kind) if part is not NoneType]
    kind = parts[0] if len(parts) == 1 else kind  # of `X | None`, X
    return (FROM_CONF, *get_args(kind)) if get_origin(kind) is Literal else ""
