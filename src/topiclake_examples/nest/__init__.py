"""Nest's devices: logs of homes, sightings of cameras, and who is told of them."""

from topiclake_examples.nest.cameras import (
    camera_notices,
    camera_states,
    dated_cameras,
    nest_cameras,
    publish_nest_logs,
    sighting_records,
    sightings_per_hour,
)
from topiclake_examples.nest.locations import device_locations
from topiclake_examples.nest.report import sightings_chart, sightings_report

__all__ = [
    "camera_notices",
    "camera_states",
    "dated_cameras",
    "device_locations",
    "nest_cameras",
    "publish_nest_logs",
    "sighting_records",
    "sightings_chart",
    "sightings_per_hour",
    "sightings_report",
]
