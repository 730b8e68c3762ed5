"""What conf/ may say: one module a section, and the loader.

Doors: `settings` (all sections of one pipeline), `load` (from files and parameters), `notebook` (from
widgets), `secret` (never shown).
"""
