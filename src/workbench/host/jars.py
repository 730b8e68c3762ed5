"""The jars of a wheel, fetched once by the Ivy that PySpark brings, and compared with the lock."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from topiclake.errors import PlatformError
from workbench.host.files import write_errors
from workbench.host.home import folder_bytes
from workbench.host.installation import PACKAGED, cache_folder, clone, jars_folder, spark_home
from workbench.host.jar_lock import Artifact, read_artifacts, read_sums, wrong_jars
from workbench.host.java import more_options, require_java
from workbench.host.program_cache import OnProgress

#: Names a settings file of Ivy, such as the one of `spark.jars.ivySettings`: a company's mirror.
SETTINGS_VARIABLE = "WORKBENCH_IVY_SETTINGS"
#: Makes archives of classes in the folder of the jars.
_ARCHIVER = "workbench.kernel.class_archive"
#: In the folder of the jars: the archives exist, or could not be made. `make jars` writes the same file.
_ARCHIVED = Path("target", ".archived")
#: Size of all artifacts together, for the progress.
TOTAL_MB = 210
PROGRESS_SECONDS = 5.0

#: Maven Central by Ivy's own default. The lock has all artifacts, so no poms: a mirror may lack a parent.
#: No checksums of the mirror: the sums of the lock are compared.
_SETTINGS = """\
<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="io.topiclake" module="{name}"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = """\
    <dependency org="{group}" name="{name}" rev="{version}" conf="default->default" transitive="false">
      <artifact name="{name}" type="{type}" ext="{type}"{classifier}/>
    </dependency>"""


def fetch_jars(on_progress: OnProgress) -> Path:
    """Return the folder of the jars; fetch those of a wheel into the cache if it does not hold them.

    The folder appears when all jars are in it and have their sums. Then the classes of Spark, broker and
    registry are archived there, so that these start faster. A fetch continues an interrupted one.

    Args:
        on_progress: Is called with a line for each step that takes time.

    Raises:
        PlatformError: Java or Ivy is missing, an artifact cannot be fetched, or a jar has another sum.
        StorageError: The cache cannot be written.
    """
    folder = jars_folder()
    if clone() or (folder / _ARCHIVED).exists():
        return folder
    cache = cache_folder()
    problem = f"the jars cannot be written to {cache}"
    with write_errors(problem, cache, "set XDG_CACHE_HOME=<a folder with 800 MB of room>"):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _sole(cache / "jars.lock", on_progress):
            if not folder.is_dir():
                _fetch(folder, cache / "ivy", on_progress)
            if not (folder / _ARCHIVED).exists():
                _archive_classes(folder, on_progress)
    return folder


@contextmanager
def _sole(lock: Path, on_progress: OnProgress) -> Iterator[None]:
    """Wait until no other process fetches; the lock falls when its process and its Ivy have ended."""
    with lock.open("a") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("waiting for another process that fetches the jars")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, ivy_folder: Path, on_progress: OnProgress) -> None:
    on_progress(f"fetching the jars of Spark, Kafka and the schema registry (once, {TOTAL_MB} MB)")
    building = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    shutil.copytree(PACKAGED / "jars", building)
    ivy_folder.mkdir(exist_ok=True)
    artifacts, sums = read_artifacts(building), read_sums(building)
    for module in dict.fromkeys(artifact.module for artifact in artifacts):
        needed = [artifact for artifact in artifacts if artifact.module == module]
        fetched = building / module / "target" / "jars"
        _run_ivy(ivy_folder, module, needed, fetched, on_progress)
        for archive in (fetched / artifact.file for artifact in needed if artifact.type != "jar"):
            _unpack(archive, building, f"{module}/target/registry", sums)
            archive.unlink()
    if wrong := wrong_jars(building, sums):
        # The next fetch must not find these files there.
        shutil.rmtree(ivy_folder)
        path = wrong[0]
        raise PlatformError(
            f"{len(wrong)} of the fetched jars are not those of the lock, the first is {path}: "
            f"its SHA-256 sum is expected to be {sums[path]}",
            f"run the command again, or name another mirror by {SETTINGS_VARIABLE}=<a settings file of Ivy>",
            path=path,
            expected=sums[path],
            reason="sum",
        )
    building.rename(folder)
    shutil.rmtree(ivy_folder)
    on_progress(f"the jars are in {folder}")


def _archive_classes(folder: Path, on_progress: OnProgress) -> None:
    """Archive classes. If that fails, programs start slower, and the jars can be used all the same."""
    on_progress("archiving the classes of Spark, Kafka and the schema registry (once, about a minute)")
    archived, log = folder / _ARCHIVED, folder / "target" / "archive.log"
    archived.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        # It inherits the lock, as Ivy does.
        done = subprocess.run(
            [sys.executable, "-m", _ARCHIVER, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            close_fds=False,
            check=False,
        )
    if done.returncode:
        on_progress(f"the classes could not be archived, so programs start slower (log: {log})")
    archived.touch()


def _unpack(archive: Path, folder: Path, below: str, sums: Mapping[str, str]) -> None:
    """Write the members that the lock names, and no others."""
    with tarfile.open(archive) as tar:
        for member in tar:
            path = f"{below}/{member.name.removeprefix('./')}"
            content = tar.extractfile(member) if path in sums else None
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content.read())


def _run_ivy(
    ivy_folder: Path, module: str, artifacts: Sequence[Artifact], into: Path, on_progress: OnProgress
) -> None:
    """Have Ivy fetch artifacts into its cache, which holds whole files only, and copy them to a folder."""
    description, settings, log = (
        ivy_folder / name for name in (f"{module}.xml", "settings.xml", f"{module}.log")
    )
    description.write_text(_module_text(module, artifacts), "utf-8")
    settings.write_text(_SETTINGS, "utf-8")
    command = [
        *(str(require_java().path), *more_options(), "-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
        *("-settings", os.environ.get(SETTINGS_VARIABLE) or str(settings)),
        *("-cache", str(ivy_folder / "cache"), "-ivy", str(description)),
        *("-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    with log.open("wb") as output:
        # It inherits the lock: if this process is killed, the next fetch waits for its Ivy.
        ivy = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, close_fds=False
        )
        try:
            while (code := _exit_code(ivy)) is None:
                # Ivy renames files meanwhile.
                with suppress(FileNotFoundError):
                    on_progress(f"{folder_bytes(ivy_folder) // 10**6} of {TOTAL_MB} MB")
        finally:
            ivy.kill()
            ivy.wait()
    missing = [artifact for artifact in artifacts if not (into / artifact.file).is_file()]
    if code or missing:
        raise _failure(missing, log, code)


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _failure(missing: Sequence[Artifact], log: Path, code: int) -> PlatformError:
    problems = log.read_text("utf-8", "replace").partition(":: problems summary ::")[2]
    named = [
        artifact for artifact in missing if f"{artifact.group}#{artifact.name};{artifact.version}" in problems
    ]
    names = [":".join((artifact.group, artifact.name, artifact.version)) for artifact in named or missing]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return PlatformError(
        f"Ivy could not fetch {names[0] if names else 'the jars'}{more}: "
        f"{_reason(problems) or f'exit code {code}'} (log: {log})",
        f"run the command again, or name a company's mirror by {SETTINGS_VARIABLE}=<a settings file of Ivy>",
        artifacts=tuple(names),
        log=str(log),
        reason="fetch",
    )


def _reason(problems: str) -> str:
    """Return the line with the cause, without logins of addresses; "" if no line has one."""
    lines = [line.strip() for line in problems.splitlines()]
    for sign in ("Server access error", "[FAILED", "Exception", "not found"):
        for line in lines:
            if sign in line:
                return re.sub(r"//[^/@\s]+@", "//", line)[:300]
    return ""


def _module_text(module: str, artifacts: Sequence[Artifact]) -> str:
    dependencies = [
        _DEPENDENCY.format(
            group=artifact.group,
            name=artifact.name,
            version=artifact.version,
            type=artifact.type,
            classifier=f' m:classifier="{artifact.classifier}"' if artifact.classifier else "",
        )
        for artifact in artifacts
    ]
    return _MODULE.format(name=module, dependencies="\n".join(dependencies))


def _ivy_jar() -> Path:
    jars = sorted(spark_home().glob("jars/ivy-*.jar"))
    if not jars:
        raise PlatformError("PySpark's Ivy is missing", "pip install 'topiclake[workbench]'", reason="ivy")
    return jars[0]
