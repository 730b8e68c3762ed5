"""Hits of an internet provider: text and JSON, counted by zip and window."""

from topiclake_examples.isp.hits import (
    count_records,
    dated_hits,
    hit_windows,
    hits_per_window,
    hits_per_zip,
    publish_hits,
)

__all__ = ["count_records", "dated_hits", "hit_windows", "hits_per_window", "hits_per_zip", "publish_hits"]
