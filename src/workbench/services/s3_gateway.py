"""A real S3 store: versitygw, with its buckets in a folder."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.host.files import replace_json
from workbench.host.installation import cache_folder
from workbench.host.java import Java
from workbench.host.ports import HOST, refusal
from workbench.host.program_cache import OnProgress, go_program
from workbench.services.service import Service

#: The program's Go package, and a folder with the sums of its modules.
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
LOCKED = Path(__file__).parent / "go" / "versitygw"
REGION = "us-east-1"
BUCKET = "lake"
_HEALTH = "/topiclake-health"


@dataclass(frozen=True)
class S3Gateway(Service):
    """The S3 store of a home, with a key that only this home knows."""

    name = "s3"
    port_names = ("s3",)

    @property
    def access_log(self) -> Path:
        """One line a call, as S3's own server access logs."""
        return self.folder / "access.log"

    def program(self, on_progress: OnProgress = lambda _: None) -> Path:
        """Return the gateway, built from its Go module where the cache does not hold it."""
        return go_program(cache_folder(), LOCKED, PACKAGE, on_progress)

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the endpoint."""
        return f"http://{HOST}:{ports['s3']}"

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Create the bucket and the key."""
        for folder in (self.folder / "buckets" / BUCKET, self.folder / "metadata"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._key_file.exists():
            key = {"access_key": f"TL{secrets.token_hex(8).upper()}", "secret_key": secrets.token_urlsafe(30)}
            replace_json(self._key_file, key)

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs the gateway."""
        general = {
            "--port": f"{HOST}:{ports['s3']}",
            "--region": REGION,
            "--health": _HEALTH,
            "--access-log": str(self.access_log),
        }
        arguments = [part for option in general.items() for part in option]
        # Not in extended attributes, which not every file system has.
        metadata = ["--sidecar", str(self.folder / "metadata")]
        return [str(self.program()), "--quiet", *arguments, "posix", *metadata, str(self.folder / "buckets")]

    def environment(self) -> dict[str, str]:
        """Return the key."""
        key = self._key()
        return {"ROOT_ACCESS_KEY": key["access_key"], "ROOT_SECRET_KEY": key["secret_key"]}

    def exports(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return the variables that conf/local-s3.yaml names, and the access log."""
        key = self._key()
        return {
            "WORKBENCH_S3": self.address(ports),
            "WORKBENCH_S3_ACCESS_LOG": str(self.access_log),
            "WORKBENCH_S3_SOURCE": f"s3a://{BUCKET}/topiclake",
            "TOPICLAKE_SECRET_WORKBENCH_S3_ACCESS_KEY": key["access_key"],
            "TOPICLAKE_SECRET_WORKBENCH_S3_SECRET_KEY": key["secret_key"],
        }

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Send a request to the gateway; return None if it answers, else the cause."""
        return refusal(ports["s3"], "GET", f"{self.address(ports)}{_HEALTH}", seconds)

    @property
    def _key_file(self) -> Path:
        return self.folder / "key.json"

    def _key(self) -> dict[str, str]:
        return dict(json.loads(self._key_file.read_text(encoding="utf-8")))
