from .config.load import load_settings
from .formats.deserializers import deserializer
from .ingest.audit.audit import audit_ingest
from .ingest.quarantine.replay import quarantine_summary, replay_quarantine
from .ingest.quarantine.stream import start_quarantine
from .ingest.quarantine.views import quarantine_reasons, quarantine_rows
from .ingest.start import start_ingest
from .ingest.tables import create_view, paused_topics, summarize, table_history, table_path
from .kafka.admin import ensure_topic
from .kafka.writer import drop_duplicates, write_topic
from .monitoring.listener import monitor_queries, stop_monitoring
from .monitoring.notebook import show_progress
from .pipelines.gps import counts_per_device, last_positions, publish_tracks
from .pipelines.gps_map import track_map
from .pipelines.isp import (
    count_records,
    dated_hits,
    hit_windows,
    hits_per_window,
    hits_per_zip,
    publish_hits,
)
from .pipelines.nest import (
    camera_notices,
    camera_states,
    dated_cameras,
    nest_cameras,
    publish_nest_logs,
    sighting_records,
    sightings_per_hour,
)
from .pipelines.nest_locations import device_locations
from .pipelines.nest_report import sightings_chart, sightings_report
from .pipelines.taxi import publish_trips
from .pipelines.wikimedia import publish_live_edits, publish_recorded_edits
from .pipelines.wikimedia_edits import edit_counts, edits_per_window, wikimedia_edits
from .schema_registry.registry import SchemaRegistry
from .sinks.archive import start_archive
from .sinks.avro_records import propose_schemas
from .sinks.avro_topic import avro_batches, start_avro_writer, write_avro
from .sinks.console import start_console
from .sinks.delta_table import delta_batches
from .sinks.files import create_files_table, start_files
from .sinks.jdbc.upsert import start_upsert, upsert_batches
from .sinks.late_rows import late_batches, late_counts
from .sinks.memory import start_memory
from .sinks.notices import notice_batches
from .sinks.start import start_sinks
from .sinks.topic import start_topic_writer, topic_batches
from .sources.batch import read_batch, read_compacted
from .sources.streams import decode_values, read_records, read_values
from .storage.mount import mount
from .streaming.lost_offsets import lost_offsets
from .streaming.progress import await_caught_up, keep_running
from .streaming.restarts import start_restarted
from .streaming.state import set_state
from .streaming.windows import Windows, window_counts

__all__ = [
    "SchemaRegistry",
    "Windows",
    "audit_ingest",
    "avro_batches",
    "await_caught_up",
    "camera_notices",
    "camera_states",
    "count_records",
    "counts_per_device",
    "create_files_table",
    "create_view",
    "dated_cameras",
    "dated_hits",
    "decode_values",
    "delta_batches",
    "deserializer",
    "device_locations",
    "drop_duplicates",
    "edit_counts",
    "edits_per_window",
    "ensure_topic",
    "hit_windows",
    "hits_per_window",
    "hits_per_zip",
    "keep_running",
    "last_positions",
    "late_batches",
    "late_counts",
    "load_settings",
    "lost_offsets",
    "monitor_queries",
    "mount",
    "nest_cameras",
    "notice_batches",
    "paused_topics",
    "propose_schemas",
    "publish_hits",
    "publish_live_edits",
    "publish_nest_logs",
    "publish_recorded_edits",
    "publish_tracks",
    "publish_trips",
    "quarantine_reasons",
    "quarantine_rows",
    "quarantine_summary",
    "read_batch",
    "read_compacted",
    "read_records",
    "read_values",
    "replay_quarantine",
    "set_state",
    "show_progress",
    "sighting_records",
    "sightings_chart",
    "sightings_per_hour",
    "sightings_report",
    "start_archive",
    "start_avro_writer",
    "start_console",
    "start_files",
    "start_ingest",
    "start_memory",
    "start_quarantine",
    "start_restarted",
    "start_sinks",
    "start_topic_writer",
    "start_upsert",
    "stop_monitoring",
    "summarize",
    "table_history",
    "table_path",
    "topic_batches",
    "track_map",
    "upsert_batches",
    "wikimedia_edits",
    "window_counts",
    "write_avro",
    "write_topic",
]
