"""Where the records of a configuration go."""

from __future__ import annotations

from functools import partial
from typing import Any

from topiclake.config.pipeline import TOPIC
from topiclake.config.settings import Settings
from topiclake.layout import Layout
from topiclake.micro_batch import Target
from topiclake.schema_registry import SchemaRegistry
from topiclake.storage import mount
from topiclake.value_formats import AVRO, format_of
from topiclake.wire_format import Part


def target(settings: Settings, dbutils: Any) -> Target:  # noqa: ANN401 (the platform's own)
    """Resolve paths and secrets of a configuration into what a micro-batch must know."""
    resolve = partial(mount.resolve, dbutils, settings.storage)
    pipeline = settings.pipeline
    name = TOPIC if pipeline.has_table_for_each else pipeline.topic
    parts: list[Part] = ["value", "key"] if pipeline.decode_key else ["value"]
    return Target(
        pipeline=settings.name,
        run=settings.run_id,
        subjects={part: pipeline.subjects(part, topic=name) for part in parts},
        mode=pipeline.mode,
        registry=SchemaRegistry.from_settings(settings.schema_registry),
        table=resolve(pipeline.table_path),
        quarantine=resolve(pipeline.quarantine_path),
        checkpoint=resolve(pipeline.checkpoint_path),
        layout=Layout.from_settings(pipeline),
        properties=pipeline.table_properties,
        # Each topic has some of the records that are listed for all.
        needs_one_subject=pipeline.subject_strategy == "topic_record_name",
        plain_versions=pipeline.plain_versions if pipeline.avro_form == "plain" else None,
        format=format_of(pipeline) if pipeline.is_registered else AVRO,
        type_widening=pipeline.type_widening,
    )
