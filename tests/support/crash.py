"""A crash in tests whose driver goes on."""


class CrashError(Exception):
    """The end of a process, as far as a test in one process can have it."""
