from .map import track_map
from .tracks import counts_per_device, last_positions, publish_tracks, recorded_positions

__all__ = ["counts_per_device", "last_positions", "publish_tracks", "recorded_positions", "track_map"]
