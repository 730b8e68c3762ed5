"""What `display` shows: tables, and streams while they run."""
