"""Files that are replaced in one step."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path


def replace_json(file: Path, value: object) -> None:
    """Write JSON, so that a reader sees the old content or the new one, never half.

    `mkstemp` makes the file with mode 600, so no moment exists in which others can read it.
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            json.dump(value, new, indent=2)
            new.flush()
            os.fsync(new.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
