"""Rows into the tables of a database, each batch once."""
