"""The configuration in conf/: one module for each section, and the loader.

Doors: `settings` (all sections of one pipeline), `load` (from files and parameters), `notebook` (from
widgets), `secret` (never shown).
"""
