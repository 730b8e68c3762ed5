from .publish import publish_trips
from .s3_calls import count_calls, log_size, summarize_calls
from .trips import TRIP_SCHEMAS, generate_trips, read_trips

__all__ = [
    "TRIP_SCHEMAS",
    "count_calls",
    "generate_trips",
    "log_size",
    "publish_trips",
    "read_trips",
    "summarize_calls",
]
