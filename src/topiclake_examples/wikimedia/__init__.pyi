from .edits import edit_counts, edits_per_window, wikimedia_edits
from .publish import publish_live_edits, publish_recorded_edits

__all__ = [
    "edit_counts",
    "edits_per_window",
    "publish_live_edits",
    "publish_recorded_edits",
    "wikimedia_edits",
]
