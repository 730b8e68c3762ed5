"""What streaming queries do: their progress, their lag and their end, kept where a dashboard finds it."""
