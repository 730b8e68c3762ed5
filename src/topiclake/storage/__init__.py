"""Mounting and opening of stores, and the meaning of their errors.

Doors: `mount` (mounts and paths), `access` (settings that open a store), `failures` (an error as one
sentence), and `renewal` (credentials that change during a query).
"""
