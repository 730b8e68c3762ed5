"""The outputs of `display`: tables, and streams while they run."""
