"""Ingest of topics into Delta tables, each record in exactly one place, and the audit that proves it."""
