from .cameras import (
    camera_notifications,
    camera_states,
    dated_cameras,
    nest_cameras,
    publish_nest_logs,
    sighting_records,
    sightings_per_hour,
)
from .file_batches import file_batches
from .locations import device_locations
from .report import sightings_chart, sightings_report

__all__ = [
    "camera_notifications",
    "camera_states",
    "dated_cameras",
    "device_locations",
    "file_batches",
    "nest_cameras",
    "publish_nest_logs",
    "sighting_records",
    "sightings_chart",
    "sightings_per_hour",
    "sightings_report",
]
