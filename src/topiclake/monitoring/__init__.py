"""Monitoring of streaming queries: their progress, their lag and their end, stored for a dashboard."""
