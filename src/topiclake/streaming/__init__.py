"""Streaming queries: start, checkpoint, restarts, failures and lost offsets."""
