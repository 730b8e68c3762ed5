from .hits import (
    count_records,
    dated_hits,
    hit_windows,
    hits_per_window,
    hits_per_zip,
    publish_hits,
)

__all__ = ["count_records", "dated_hits", "hit_windows", "hits_per_window", "hits_per_zip", "publish_hits"]
