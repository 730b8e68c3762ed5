"""A target with other schemas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topiclake.ingest.targets import Target


def with_schemas(target: Target, **changes: Any) -> Target:
    """Return a target of which attributes of its `TopicSchemas` are changed."""
    return replace(target, schemas=replace(target.schemas, **changes))
