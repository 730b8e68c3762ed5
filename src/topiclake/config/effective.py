"""The effective configuration as a table: each value with the file or parameter that sets it."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession

from topiclake.config.load import leaves
from topiclake.config.settings import Settings
from topiclake.local_frame import local_frame


def settings_table(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the values of a configuration, each with its origin; secrets are references only.

    Keys without a value are not listed.

    Returns:
        `key STRING, value STRING, origin STRING`; the origin is a file below the project, `parameter` or
        `default`.

    Example:
        >>> settings = tl.load_settings("readings", {"trigger": "10 seconds"}, conf=conf)
        >>> tl.settings_table(spark, settings).where("key = 'pipeline.trigger'").first()
        Row(key='pipeline.trigger', value='10 seconds', origin='parameter')
    """
    rows = [
        (key, value if isinstance(value, str) else json.dumps(value), settings.origins.get(key, "default"))
        for key, value in leaves(settings.model_dump(mode="json"))
        if value not in (None, [], {})
    ]
    return local_frame(spark, rows, "key STRING, value STRING, origin STRING")
