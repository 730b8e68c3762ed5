"""Protobuf with a schema of the registry."""
