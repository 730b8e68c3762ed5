"""Edits of Wikimedia's wikis, as they happen or as they were recorded."""

from topiclake_examples.wikimedia.edits import edit_counts, edits_per_window, wikimedia_edits
from topiclake_examples.wikimedia.publish import publish_live_edits, publish_recorded_edits

__all__ = [
    "edit_counts",
    "edits_per_window",
    "publish_live_edits",
    "publish_recorded_edits",
    "wikimedia_edits",
]
