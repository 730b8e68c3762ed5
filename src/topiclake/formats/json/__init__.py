"""JSON with a schema of the registry."""
