"""Rows into the tables of a database, each batch once."""

from topiclake.errors import require_extra

require_extra("jdbc", "sqlalchemy")
