"""Sinks of streams: a streaming DataFrame in, a StreamingQuery out."""
