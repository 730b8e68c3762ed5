"""Ivy fetches the jars of a wheel from a mirror: whole, once, and with the sums of the lock."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from topiclake.errors import PlatformError, StorageError
from workbench.host import installation, jars
from workbench.host.jar_lock import SUMS

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  {content}
</project>
"""
PARENT = "<properties><a.version>1.2</a.version></properties><modules><module>spark</module>\
<module>schema-registry</module><module>store</module></modules>"
DEPENDENCY = "<dependency><groupId>org.{name}</groupId><artifactId>{name}</artifactId>\
<version>{version}</version>{more}</dependency>"
ARCHIVE = "<artifactItem><groupId>io.r</groupId><artifactId>app</artifactId><version>3</version>\
<classifier>all</classifier><type>tar.gz</type></artifactItem>"
SETTINGS = """\
<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" usepoms="false" root="{root}"/></resolvers>
</ivysettings>
"""
A, B, APP = "/org/a/a/1.2/a-1.2.jar", "/org/b/b/2/b-2.jar", "/io/r/app/3/app-3-all.tar.gz"
OWN = "store/target/jars/topiclake-store-1.jar"


class Mirror:
    """A Maven repository on loopback: files by path, and how often each was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.stalled: set[str] = set()
        self.resumed = threading.Event()

    def respond(self, handler: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        content = self.files.get(handler.path)
        handler.send_response(404 if content is None else 200)
        handler.send_header("Content-Length", str(len(content or b"")))
        handler.end_headers()
        if with_body and content is not None:
            self.asked.append(handler.path)
            if handler.path in self.stalled:
                handler.wfile.write(content[:3])
                handler.wfile.flush()
                self.resumed.wait(120)
                return
            handler.wfile.write(content)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    mirror = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.respond(self, with_body=True)

        def do_HEAD(self) -> None:
            mirror.respond(self, with_body=False)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(root=f"http://127.0.0.1:{server.server_port}/"))
    monkeypatch.setenv(jars.SETTINGS_VARIABLE, str(settings))
    yield mirror
    mirror.resumed.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a user whose wheel needs two jars and an archive of jars."""
    packaged = tmp_path / "project" / "jars"
    compiled = DEPENDENCY.format(name="c", version="3", more="<scope>provided</scope>")
    needed = DEPENDENCY.format(name="a", version="${a.version}", more="")
    poms = {
        ".": PARENT,
        "spark": f"<dependencies>{needed}{DEPENDENCY.format(name='b', version='2', more='')}</dependencies>",
        "schema-registry": f"<build><configuration>{ARCHIVE}</configuration></build>",
        "store": f"<dependencies>{compiled}</dependencies>",
    }
    for name, content in poms.items():
        (packaged / name).mkdir(parents=True, exist_ok=True)
        (packaged / name / "pom.xml").write_text(POM.format(content=content))
    (packaged / OWN).parent.mkdir(parents=True)
    (packaged / OWN).write_bytes(b"ours")
    mirror.files = {
        A: b"jar a",
        B: b"jar b",
        APP: archive({"./app.jar": b"app", "lib/x.jar": b"x", "meta/y": b"y"}),
    }
    sums = {
        "spark/target/jars/a-1.2.jar": b"jar a",
        "spark/target/jars/b-2.jar": b"jar b",
        "schema-registry/target/registry/app.jar": b"app",
        "schema-registry/target/registry/lib/x.jar": b"x",
    }
    lines = [f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in sums.items()]
    (packaged / SUMS).write_text("".join(lines))
    monkeypatch.setattr(installation, "PACKAGED", packaged.parent)
    monkeypatch.setattr(jars, "PACKAGED", packaged.parent)
    monkeypatch.setattr(installation, "clone", lambda: None)
    monkeypatch.setattr(jars, "clone", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "topiclake"


def archive(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def fetch() -> Path:
    return jars.fetch_jars(lambda _: None)


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*.jar")}


def test_the_jars_are_fetched_once_and_nothing_that_the_lock_does_not_name(
    cache: Path, mirror: Mirror
) -> None:
    said: list[str] = []
    folder = jars.fetch_jars(said.append)
    assert folder.parent == cache
    assert said[0].startswith("fetching the jars")
    assert files(folder) == {
        "spark/target/jars/a-1.2.jar",
        "spark/target/jars/b-2.jar",
        "schema-registry/target/registry/app.jar",
        "schema-registry/target/registry/lib/x.jar",
        OWN,
    }
    assert not (folder / "schema-registry" / "target" / "registry" / "meta").exists()
    assert sorted(mirror.asked) == sorted([A, B, APP])
    # These jars are not those of Spark, whose classes cannot be archived.
    log = folder / "target" / "archive.log"
    assert said[-2].startswith("archiving the classes of Spark")
    assert said[-1] == f"the classes could not be archived, so programs start slower (log: {log})"
    assert "Spark's jars are not in" in log.read_text()

    lines = len(said)
    assert jars.fetch_jars(said.append) == folder
    assert len(said) == lines
    assert len(mirror.asked) == 3
    assert sorted(path.name for path in cache.iterdir()) == [folder.name, "jars.lock"]


def test_a_jar_of_another_sum_is_named_and_not_used_and_the_next_fetch_asks_again(
    cache: Path, mirror: Mirror
) -> None:
    right, mirror.files[B] = mirror.files[B], b"another"
    with pytest.raises(PlatformError, match=r"the first is spark/target/jars/b-2\.jar") as raised:
        fetch()
    assert raised.value.fields["reason"] == "sum"
    assert not installation.jars_folder().exists()

    mirror.files[B] = right
    assert len(files(fetch())) == 5


def test_an_artifact_that_the_mirror_lacks_is_named_and_the_others_are_asked_for_once(
    cache: Path, mirror: Mirror
) -> None:
    content = mirror.files.pop(B)
    with pytest.raises(
        PlatformError, match=rf"could not fetch org\.b:b:2: .*{jars.SETTINGS_VARIABLE}="
    ) as raised:
        fetch()
    assert raised.value.fields["artifacts"] == ("org.b:b:2",)
    assert not installation.jars_folder().exists()

    mirror.files[B] = content
    fetch()
    assert mirror.asked.count(A) == 1


def test_a_mirror_that_is_not_reachable_is_one_sentence(
    cache: Path, mirror: Mirror, tmp_path: Path, free_port: int
) -> None:
    root = f"http://robot:secret@127.0.0.1:{free_port}/"
    (tmp_path / "ivysettings.xml").write_text(SETTINGS.format(root=root))
    with pytest.raises(PlatformError, match=r"could not fetch org\.a:a:1\.2 and 1 more: .*refused") as raised:
        fetch()
    assert "secret" not in str(raised.value)


def test_a_fetch_that_was_killed_half_way_continues_with_the_next(
    cache: Path, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.stalled = {B}
    program = (
        "import sys; from pathlib import Path; from workbench.host import installation, jars\n"
        "for module in (installation, jars):\n"
        "    module.clone, module.PACKAGED = lambda: None, Path(sys.argv[1])\n"
        "jars.fetch_jars(print)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "project")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 120
        while B not in mirror.asked and time.monotonic() < deadline:
            time.sleep(0.05)
        assert B in mirror.asked
        first.kill()
    mirror.stalled = set()
    mirror.resumed.set()
    assert len(files(fetch())) == 5
    assert mirror.asked.count(A) == 1


def test_two_fetches_at_once_fetch_once(cache: Path, mirror: Mirror) -> None:
    said: list[str] = []
    threads = [threading.Thread(target=jars.fetch_jars, args=[said.append]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(mirror.asked) == sorted([A, B, APP])
    assert "waiting for another process that fetches the jars" in said
    assert len(files(installation.jars_folder())) == 5


def test_a_cache_that_cannot_be_written_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="; try: set XDG_CACHE_HOME=") as raised:
        fetch()
    assert raised.value.fields["reason"] == "not_writable"
