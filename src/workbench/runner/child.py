"""The process of `dbutils.notebook.run`: `python -m workbench.runner.child <file>`.

The file names the notebook, and holds the result afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from rich.console import Console

from topiclake.errors import TopiclakeError
from workbench.host.home import Home
from workbench.runner.runner import run_notebook

POLL_SECONDS = 1.0


def main(file: Path) -> None:
    """Run the notebook; write its exit value, or the error's text."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    request = json.loads(file.read_text(encoding="utf-8"))
    home = Home(Path(request["home_folder"]), Path(request["project_folder"]))
    try:
        # A kernel sets FORCE_COLOR, but this output is shown as lines of its cell.
        console = Console(force_terminal=False, color_system=None)
        done = run_notebook(
            Path(request["notebook"]), request["arguments"], home, {}, console, secrets=request["secrets"]
        )
    except TopiclakeError as error:
        result = {"error": str(error)}
    else:
        result = {"exit_value": done.exit_value}
    file.write_text(json.dumps(result), encoding="utf-8")


def _end_with(parent: int) -> None:
    """Stop the run, as SIGTERM does, when the calling kernel has ended."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
