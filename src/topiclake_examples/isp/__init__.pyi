from .charts import start_live_chart, window_pies
from .database import database_rows
from .hits import (
    count_records,
    dated_hits,
    hit_windows,
    hits_per_window,
    hits_per_zip,
    publish_hits,
)

__all__ = [
    "count_records",
    "database_rows",
    "dated_hits",
    "hit_windows",
    "hits_per_window",
    "hits_per_zip",
    "publish_hits",
    "start_live_chart",
    "window_pies",
]
