"""Kafka topics into Delta tables, each record exactly once.

What a notebook calls; everything else is a module below.
"""

from topiclake.audit import audit_ingest
from topiclake.config import load_settings
from topiclake.ingest import start_ingest
from topiclake.pipelines.gps import counts_per_device, last_positions, publish_tracks
from topiclake.pipelines.gps_map import track_map
from topiclake.progress import await_caught_up
from topiclake.quarantine_views import quarantine_reasons, quarantine_rows
from topiclake.replay import quarantine_summary, replay_quarantine
from topiclake.schema_registry import SchemaRegistry
from topiclake.storage import mount
from topiclake.tables import create_view, paused_topics, summarize, table_history, table_path

__all__ = [
    "SchemaRegistry",
    "audit_ingest",
    "await_caught_up",
    "counts_per_device",
    "create_view",
    "last_positions",
    "load_settings",
    "mount",
    "paused_topics",
    "publish_tracks",
    "quarantine_reasons",
    "quarantine_rows",
    "quarantine_summary",
    "replay_quarantine",
    "start_ingest",
    "summarize",
    "table_history",
    "table_path",
    "track_map",
]
