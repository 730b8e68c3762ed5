"""Whether a run of a pipeline handles few records, so that a JVM with a short life is faster."""

from __future__ import annotations

from collections.abc import Mapping

from topiclake.config.notebook import KEYS
from topiclake.errors import ConfigError
from topiclake.kafka.offsets import pipeline_offsets
from workbench.commands.settings import pipeline_settings
from workbench.host.home import Home

#: For more records than that, compiled plans are worth their time.
FEW_RECORDS = 100_000


def has_few_records(home: Home, parameters: Mapping[str, str]) -> bool:
    """Return whether a run ends by itself, and its topics never had more than `FEW_RECORDS` records.

    With a wrong configuration it is False: the run itself names the error.

    Args:
        home: The home of the services that `env=local` reads.
        parameters: The parameters of the notebook.

    Raises:
        KafkaError: The broker cannot be reached, or refuses the login or the request.
        LoginError: A token or a client certificate cannot be used.
    """
    given = {name: value for name, value in parameters.items() if name in KEYS or name == "env"}
    try:
        settings = pipeline_settings(home, parameters.get("pipeline"), given)
    except ConfigError:
        return False
    offsets = pipeline_offsets(settings.kafka, settings.pipeline, []).offsets
    records = sum(end for partitions in offsets.values() for _, end in partitions.values())
    return settings.pipeline.trigger == "availableNow" and records <= FEW_RECORDS
