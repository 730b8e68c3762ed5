"""Records that are no rows: how people see them, and how they become rows later."""
