"""What conf/ may say: one module a section, and the loader.

Doors: `settings` (all sections together), `load` (from files and parameters), `secret` (never shown).
"""
