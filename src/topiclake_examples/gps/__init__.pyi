from .map import track_map
from .tracks import counts_per_device, last_positions, publish_tracks

__all__ = ["counts_per_device", "last_positions", "publish_tracks", "track_map"]
