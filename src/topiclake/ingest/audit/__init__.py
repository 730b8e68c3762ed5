"""The proof that each record of a topic is in exactly one place; it shares no code with the ingest."""
