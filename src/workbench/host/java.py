"""The Java of the services and of Spark."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from topiclake.errors import PlatformError

MINIMUM = 17
#: Holds more options for each JVM that the workbench starts.
OPTIONS_VARIABLE = "WORKBENCH_JAVA_OPTIONS"
#: For a JVM with a short life, in which the second compiler's work would not pay.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
#: Any value has Spark interpret its plans in one task: compiled plans and tasks cost a few rows more time
#: than they save.
FEW_ROWS_VARIABLE = "WORKBENCH_FEW_ROWS"
#: Thresholds of the second compiler, six times Java's own. A command with a few thousand records stays below
#: them. A long drain passes them in its first seconds.
LATE_COMPILED = (
    "-XX:Tier4InvocationThreshold=30000",
    "-XX:Tier4MinInvocationThreshold=5000",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=200000",
)
REMEDY = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME to a Java 17 or newer"


@dataclass(frozen=True)
class Java:
    """A Java that was found.

    Attributes:
        path: The `java` program.
        version: As Java itself writes it, such as `17.0.15`.
    """

    path: Path
    version: str


def parse_version(text: str) -> tuple[str, int] | None:
    """Return the version and its major number from what `java -version` prints; None when it has none."""
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', text)
    return (match[1], int(match[2])) if match else None


def require_java() -> Java:
    """Return the Java of JAVA_HOME, else the one on the PATH.

    Raises:
        PlatformError: Java is missing, or is older than `MINIMUM`.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    location = f"in JAVA_HOME ({home})" if home else "on the PATH"
    if program is None or not os.access(program, os.X_OK):
        raise _unfit(f"found none {location}", reason="missing")
    path = Path(program)
    version = parse_version(_version_text(path))
    if version is None:
        raise _unfit(f"{path} does not report its version", path=str(path), reason="no_version")
    if version[1] < MINIMUM:
        problem = f"found {version[0]} at {path}"
        raise _unfit(problem, path=str(path), found=version[0], reason="too_old")
    return Java(path, version[0])


def _unfit(problem: str, **fields: str) -> PlatformError:
    cause = f"Java {MINIMUM} or newer is needed, {problem}"
    return PlatformError(cause, REMEDY, minimum=MINIMUM, **fields)


def more_options() -> list[str]:
    """Return the options that the environment holds for each JVM."""
    return shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))


def short_lived() -> dict[str, str]:
    """Return the environment of a command with few rows; the user's own options win over SHORT_LIVED."""
    return {OPTIONS_VARIABLE: shlex.join([SHORT_LIVED, *more_options()]), FEW_ROWS_VARIABLE: "1"}


def _version_text(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
