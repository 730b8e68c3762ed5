"""`topiclake`, or `python -m workbench`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run a command; return its exit code, 1 if the extra `workbench` is not installed."""
    try:
        from workbench.commands.cli import main as run
    except ModuleNotFoundError as error:
        print(f"✗ {error.name} is not installed; try: pip install 'topiclake[workbench]'", file=sys.stderr)  # noqa: T201
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
