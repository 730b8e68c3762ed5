"""Rejected records: views of the quarantine, and replays that turn records into rows later."""
