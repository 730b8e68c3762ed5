"""GPS trackers: tracks are played to a topic, counted and drawn."""

from topiclake_examples.gps.map import track_map
from topiclake_examples.gps.tracks import counts_per_device, last_positions, publish_tracks

__all__ = ["counts_per_device", "last_positions", "publish_tracks", "track_map"]
