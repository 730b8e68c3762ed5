"""Rows into the tables of a database, each micro-batch exactly once."""

from topiclake.errors import require_extra

require_extra("jdbc", "sqlalchemy")
