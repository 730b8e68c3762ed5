"""The lock of the jars: `jars/*/pom.xml` name the artifacts, and `jars/sha256sums` the files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

SUMS = "sha256sums"


@dataclass(frozen=True)
class Artifact:
    """A file of a Maven repository.

    Attributes:
        module: The folder of `jars/` that needs it.
        type: `jar`, or `tar.gz` for an archive of jars.
    """

    module: str
    group: str
    name: str
    version: str
    classifier: str
    type: str

    @property
    def file(self) -> str:
        """Its name in a folder of jars."""
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + f".{self.type}"


def read_artifacts(folder: Path) -> list[Artifact]:
    """Return the artifacts that modules of `folder`/pom.xml fetch, without those of compile time only."""
    parent = _pom(folder)
    values = {entry.tag.rpartition("}")[2]: entry.text or "" for entry in parent.iterfind("{*}properties/*")}
    artifacts = []
    for module in (entry.text or "" for entry in parent.iterfind("{*}modules/{*}module")):
        pom = _pom(folder / module)
        entries = (*pom.iterfind("{*}dependencies/{*}dependency"), *pom.iterfind(".//{*}artifactItem"))
        artifacts += [_artifact(module, entry, values) for entry in entries if entry.find("{*}scope") is None]
    return artifacts


def _artifact(module: str, entry: ElementTree.Element, values: Mapping[str, str]) -> Artifact:
    tags = ("groupId", "artifactId", "version", "classifier", "type")
    texts = (entry.findtext(f"{{*}}{tag}") or "" for tag in tags)
    group, name, version, classifier, kind = (
        re.sub(r"\$\{([\w.-]+)\}", lambda match: values[match[1]], text) for text in texts
    )
    return Artifact(module, group, name, version, classifier, kind or "jar")


def read_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 sum of each fetched jar by its path below `folder`."""
    lines = (folder / SUMS).read_text("utf-8").splitlines()
    return {path: expected for expected, path in (line.split("  ", 1) for line in lines)}


def wrong_jars(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the paths below `folder` where no jar of the expected sum is."""
    return [path for path, expected in sums.items() if _sum(folder / path) != expected]


def _sum(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _pom(folder: Path) -> ElementTree.Element:
    return ElementTree.parse(folder / "pom.xml").getroot()  # noqa: S314 - the project's own file
