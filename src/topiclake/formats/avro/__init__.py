"""Avro: versions become one reader schema, and each record is decoded by its own."""
