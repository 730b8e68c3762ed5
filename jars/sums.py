"""Compare the jars that Maven fetched with the sums that the project keeps; `--write` renews those.

Runs before there is a virtual environment, so with Python's own library alone.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

#: Of each jar, as `sha256sum` writes it, with its path below `jars/`.
SUMS = "sha256sums"
#: Made here, so never twice the same.
OWN = ("topiclake-store-1.jar", "topiclake-values-1.jar", "topiclake-console-1.jar")


def fetched(folder: Path) -> dict[str, str]:
    """Return the sum of each jar below `folder` that was fetched, by its path."""
    return {
        file.relative_to(folder).as_posix(): sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.glob("*/target/**/*.jar"))
        if file.name not in OWN
    }


def listed(folder: Path) -> dict[str, str]:
    """Return the sums that the project keeps, by path."""
    lines = (folder / SUMS).read_text("utf-8").splitlines()
    return {path: known for known, path in (line.split("  ", 1) for line in lines)}


def problems(folder: Path) -> list[str]:
    """Say what is another jar than the one that the project was tested with, missing, or not known."""
    listed_sums, fetched_sums = listed(folder), fetched(folder)
    wrong = [
        f"{path} has the SHA-256 sum {fetched_sums[path]}, and {listed_sums[path]} is expected"
        for path in sorted(listed_sums.keys() & fetched_sums.keys())
        if listed_sums[path] != fetched_sums[path]
    ]
    missing = [f"{path} is missing" for path in sorted(listed_sums.keys() - fetched_sums.keys())]
    unknown = [f"{path} is not in jars/{SUMS}" for path in sorted(fetched_sums.keys() - listed_sums.keys())]
    return wrong + missing + unknown


def main(arguments: list[str]) -> str | None:
    """Check, or write; return what is wrong."""
    folder = Path(__file__).parent
    if arguments == ["--write"]:
        lines = [f"{known}  {path}\n" for path, known in fetched(folder).items()]
        (folder / SUMS).write_text("".join(lines), "utf-8")
        return None
    wrong = problems(folder)
    if not wrong:
        return None
    return "\n".join(
        [
            *wrong[:20],
            f"{len(wrong)} of the jars are not those of jars/{SUMS}; try: make clean jars, from another mirror; "
            "or, after a version in jars/pom.xml was changed and looked at, python3 jars/sums.py --write",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
