"""Custom deserializers: a Python function, or a Kafka `Deserializer` class, from values to JSON.

A configuration names a function as `module:function`, so that jobs, replays and the next start find the same
function. Only functions with the decorator `@topiclake.deserializer` are called. A class is named as Kafka's
consumers name it, and must be a `Deserializer`. So a parameter cannot name any other code.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from topiclake.errors import ConfigError
from topiclake.formats.codec import once

#: From values, none of which is null, to the same number of objects that JSON can hold.
Deserialize = Callable[[Sequence[bytes]], Iterable[object]]
_Function = TypeVar("_Function", bound=Deserialize)

_MARK = "_topiclake_deserializer"
#: The function that calls a class, in SQL and in Java.
_FUNCTION = "topiclake_deserialize"
_JAVA = "io.topiclake.values.Deserialize"
_ANSWER = "text STRING, error STRING"
#: The prefix of the Java function's error messages.
_ERROR_PREFIX = "TOPICLAKE_DESERIALIZER "


def deserializer(function: _Function) -> _Function:
    """Mark a function as a deserializer, for `value_format: custom` and `deserializer: module:function`.

    Args:
        function: Accepts values, BINARY, none of them null, and returns one object for each, in the same
            order: a dict with the fields of `value_schema`. If it raises, it is called again with one value
            at a time. A value for which it raises again is `undecodable`, and the quarantine holds the error.
            The function runs on Spark's workers, which need its module, unless a notebook defines it.

    Returns:
        The function itself.

    Example:
        >>> @tl.deserializer
        ... def comma_separated(values):
        ...     return [dict(zip(("sensor", "celsius"), value.decode().split(","))) for value in values]
        >>> comma_separated([b"boiler,81"])
        [{'sensor': 'boiler', 'celsius': '81'}]
    """
    setattr(function, _MARK, True)
    return function


def load(name: str) -> Deserialize:
    """Return the deserializer that a configuration names.

    Raises:
        ConfigError: It does not exist, or is not marked as a deserializer.
    """
    remedy = "set deserializer: <module>:<function>, a function with @topiclake.deserializer above it"
    module, _, function = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"there is no deserializer {name}: {error}", remedy, deserializer=name, reason="missing"
        ) from None
    if not getattr(loaded, _MARK, False) or not callable(loaded):
        raise ConfigError(f"{name} is no deserializer", remedy, deserializer=name, reason="unmarked")
    deserialize: Deserialize = loaded
    return deserialize


def deserialized(deserialize: Deserialize, value: Column) -> Column:
    """Deserialize `value BINARY`; runs Python, many rows at a time.

    Returns:
        STRUCT<text STRING, error STRING>: the value as JSON, or what the function raised; both null where the
        value is.
    """

    # Everything inside: Spark ships it by value, so the library need not be on the workers.
    def run(values: pd.Series) -> pd.DataFrame:
        import json

        def texts(batch: list[bytes]) -> list[str]:
            objects = list(deserialize(batch))
            if len(objects) != len(batch):
                raise ValueError(f"the deserializer gave {len(objects)} objects for {len(batch)} values")
            return [json.dumps(value, allow_nan=False) for value in objects]

        def deserialize_one(value: bytes) -> tuple[str | None, str | None]:
            try:
                return texts([value])[0], None
            except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
                return None, f"{type(error).__name__}: {error}"[:1000]

        present = [bytes(value) for value in values if value is not None]
        try:
            pairs: list[tuple[str | None, str | None]] = [(text, None) for text in texts(present)]
        except Exception:  # noqa: BLE001
            pairs = [deserialize_one(value) for value in present]
        results = iter(pairs)
        rows = [(None, None) if value is None else next(results) for value in values]
        return pd.DataFrame(rows, columns=["text", "error"])

    pandas_udf: Any = F.pandas_udf  # its overloads know no schema as text
    # Called once for each value, wherever Spark would like to have it twice.
    result: Column = pandas_udf(run, _ANSWER).asNondeterministic()(value)
    return result


def is_class(name: str) -> bool:
    """Return whether a configuration names a Java class, and no Python function."""
    return ":" not in name


def register(spark: SparkSession) -> None:
    """Make the function that calls classes known to the session; `jars/values` has it."""
    spark.udf.registerJavaFunction(_FUNCTION, _JAVA, _ANSWER)


def require_class(spark: SparkSession, name: str, config: Mapping[str, str]) -> None:
    """Check that a class can be used.

    Raises:
        ConfigError: `jars/values` or the class is missing, or it is no Deserializer, or refuses `config`.
    """
    remedy = (
        "add the class's jar to spark.jars (Databricks: to the libraries), or correct deserializer_config"
    )
    try:
        register(spark)
        probe = deserialized_by_class(name, config, F.lit(None).cast("string"), F.lit(None).cast("binary"))
        spark.range(1).select(probe.alias("nothing")).collect()
    except (PySparkException, Py4JJavaError) as error:
        problem = str(error).partition(_ERROR_PREFIX)[2] or str(error)
        problem = problem.splitlines()[0][:300]
        raise ConfigError(
            f"the deserializer {problem}", remedy, deserializer=name, reason="refused", detail=problem
        ) from None


def deserialized_by_class(name: str, config: Mapping[str, str], topic: Column, value: Column) -> Column:
    """Deserialize `value BINARY` of `topic STRING` by a Kafka `Deserializer` class; see `require_class`.

    Args:
        name: The name of the class; Spark's workers have its jar.
        config: The argument of its `configure`.
        topic: The first argument of its `deserialize`.
        value: The second argument of its `deserialize`.

    Returns:
        STRUCT<text STRING, error STRING>: the value as JSON, or what the class raised; both null where the
        value is. A service that the class asks and that does not answer raises.
    """
    result = F.call_function(_FUNCTION, F.lit(name), F.lit(json.dumps(dict(config))), topic, value)
    return once(result)
