from .config.effective import settings_table
from .config.load import load_settings
from .config.notebook import notebook_settings
from .config.settings import Settings
from .formats.deserializers import deserializer
from .ingest.audit.audit import audit_ingest
from .ingest.plan import plan_ingest
from .ingest.quarantine.replay import quarantine_summary, replay_quarantine
from .ingest.quarantine.stream import start_quarantine
from .ingest.quarantine.views import quarantine_reasons, quarantine_rows
from .ingest.start import start_ingest
from .ingest.tables import (
    create_view,
    paused_topics,
    read_table_stream,
    summarize,
    table_history,
    table_identifier,
    table_path,
)
from .kafka.admin import ensure_topic
from .kafka.client import client_settings
from .kafka.writer import drop_duplicates, write_topic
from .monitoring.listener import monitor_queries, stop_monitoring
from .monitoring.notebook import show_progress
from .monitoring.picture import draw_table
from .schema_registry.registry import SchemaRegistry
from .sinks.archive import start_archive
from .sinks.avro_records import propose_schemas
from .sinks.avro_topic import avro_batches, start_avro_writer, write_avro
from .sinks.changes import apply_changes, changes_view, purge_changes
from .sinks.console import start_console
from .sinks.delta_table import delta_batches
from .sinks.files import create_files_table, start_files
from .sinks.jdbc.upsert import start_upsert, upsert_batches
from .sinks.late_rows import late_batches, late_counts
from .sinks.memory import start_memory
from .sinks.notifications import notify_batches
from .sinks.start import start_sinks
from .sinks.topic import start_topic_writer, topic_batches
from .sources.batch import read_batch, read_compacted
from .sources.streams import decode_values, read_records, read_values
from .storage.failures import storage_errors
from .storage.mount import mount, resolve
from .streaming.lost_offsets import lost_offsets
from .streaming.progress import await_caught_up, keep_running
from .streaming.restarts import start_restarted
from .streaming.sink import Sink, SinkBatch
from .streaming.state import set_state
from .streaming.windows import Windows, not_ahead, window_counts

__all__ = [
    "SchemaRegistry",
    "Settings",
    "Sink",
    "SinkBatch",
    "Windows",
    "apply_changes",
    "audit_ingest",
    "avro_batches",
    "await_caught_up",
    "changes_view",
    "client_settings",
    "create_files_table",
    "create_view",
    "decode_values",
    "delta_batches",
    "deserializer",
    "draw_table",
    "drop_duplicates",
    "ensure_topic",
    "keep_running",
    "late_batches",
    "late_counts",
    "load_settings",
    "lost_offsets",
    "monitor_queries",
    "mount",
    "not_ahead",
    "notebook_settings",
    "notify_batches",
    "paused_topics",
    "plan_ingest",
    "propose_schemas",
    "purge_changes",
    "quarantine_reasons",
    "quarantine_rows",
    "quarantine_summary",
    "read_batch",
    "read_compacted",
    "read_records",
    "read_table_stream",
    "read_values",
    "replay_quarantine",
    "resolve",
    "set_state",
    "settings_table",
    "show_progress",
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
    "storage_errors",
    "summarize",
    "table_history",
    "table_identifier",
    "table_path",
    "topic_batches",
    "upsert_batches",
    "window_counts",
    "write_avro",
    "write_topic",
]
