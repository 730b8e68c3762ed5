"""Azure's blob store on this machine: Azurite from npm, under the host name that the article mounts."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree

import psutil
import requests

from tests.services.azure_sas import container_sas
from workbench.host.certificates import TRUST_PASSWORD, Certificate, make_certificate, trust_store
from workbench.host.program_cache import node, npm_program
from workbench.services.azurite import API_VERSION, LOCKED, RESOLVER, SCRIPT, account_sas, hosts_file

PROJECT = Path(__file__).parents[2]
ACCOUNT = "devstoreaccount1"
HOST = f"{ACCOUNT}.blob.core.windows.net"
#: That of the article's address, which names none.
PORT = 443
START_SECONDS = 120


@dataclass(frozen=True)
class Azurite:
    """A running blob store whose account key only this process knows.

    Attributes:
        address: The loopback address behind `HOST`.
        certificate: What the store shows, and the authority to trust.
        key: The account's key, base64.
        folder: Where the store keeps its data and logs.
    """

    address: str
    certificate: Certificate
    key: str = field(repr=False)
    folder: Path

    def container_sas(
        self, container: str, expires: datetime | None = None, permissions: str = "racwdl"
    ) -> str:
        """Return a token for one container, signed with the account's key."""
        return container_sas(ACCOUNT, self.key, container, expires, permissions)

    def account_sas(self) -> str:
        """Return a token for the whole account: what creates containers and looks into them."""
        return account_sas(ACCOUNT, self.key)

    def request(self, method: str, path: str, sas: str = "", **query: str) -> requests.Response:
        """Send one request of the REST API; without a token it is anonymous."""
        parts = "&".join(part for part in (urlencode(query), sas) if part)
        return requests.request(
            method,
            f"https://{self.address}/{path}?{parts}",
            headers={"Host": HOST, "x-ms-version": API_VERSION},
            verify=str(self.certificate.authority),
            timeout=120,
        )

    def create_container(self, container: str) -> None:
        """Create a private container."""
        self.request("PUT", container, self.account_sas(), restype="container").raise_for_status()

    def blobs(self, container: str, prefix: str = "") -> list[str]:
        """Return the names of all blobs below `prefix`."""
        names: list[str] = []
        marker = ""
        while True:
            page = self.request(
                "GET",
                container,
                self.account_sas(),
                restype="container",
                comp="list",
                prefix=prefix,
                marker=marker,
            )
            page.raise_for_status()
            tree = ElementTree.fromstring(page.content)
            names += [name.text or "" for name in tree.iterfind("Blobs/Blob/Name")]
            marker = tree.findtext("NextMarker") or ""
            if not marker:
                return names

    def read(self, container: str, name: str) -> bytes:
        """Return a blob's content."""
        found = self.request("GET", f"{container}/{name}", self.account_sas())
        found.raise_for_status()
        return found.content

    def java_options(self, more: Mapping[str, str] | None = None) -> str:
        """Return what makes a JVM find the store under its name, and `more` hosts, and trust them."""
        hosts = self.folder / "hosts"
        hosts.write_text(hosts_file({HOST: self.address} | dict(more or {})))
        trusted = trust_store(self.folder, self.certificate)
        return (
            f"-Djdk.net.hosts.file={hosts} -Djavax.net.ssl.trustStore={trusted} "
            f"-Djavax.net.ssl.trustStorePassword={TRUST_PASSWORD}"
        )


@contextmanager
def running_azurite(folder: Path, *more_hosts: str) -> Iterator[Azurite]:
    """Start Azurite with its data in `folder`, wait until it answers, and end it afterwards.

    Args:
        folder: Its own.
        more_hosts: Other names that its certificate is good for.

    Raises:
        RuntimeError: npm fails, the port is taken or not allowed, or Azurite did not start.
    """
    program = install()
    folder.mkdir(parents=True, exist_ok=True)
    address = own_address(44)
    require_port(address)
    store = Azurite(
        address,
        make_certificate(folder, HOST, address, *more_hosts),
        base64.b64encode(os.urandom(64)).decode(),
        folder,
    )
    log = folder / "azurite.log"
    with log.open("wb") as output:
        process = psutil.Popen(
            _command(program, store),
            env=_environment(store),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _await_answer(store, process, log)
        yield store
    finally:
        process.terminate()
        try:
            process.wait(120)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(120)


def install() -> Path:
    """Return Azurite's program; fetch it from npm when this checkout does not have it yet."""
    return npm_program(
        PROJECT / ".cache", LOCKED, SCRIPT, lambda text: print(text, file=sys.__stderr__, flush=True)
    )


def own_address(network: int) -> str:
    """Return a loopback address of this process' own on Linux, so that two runs do not meet at one port."""
    number = os.getpid() & 0xFFFF
    return f"127.{network}.{number >> 8}.{number & 0xFF}" if sys.platform == "linux" else "127.0.0.1"


def require_port(address: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, PORT))
        except PermissionError:
            why = "needs root, or: setcap cap_net_bind_service=+ep on node"
        except OSError:
            why = f"is taken; find by whom: ss -ltnp 'sport = :{PORT}'"
        else:
            return
    raise RuntimeError(
        f"a server of these tests must listen on port {PORT}, which the article's address has, and it {why}"
    )


def _command(program: Path, store: Azurite) -> list[str]:
    resolver = store.folder / "resolver.js"
    resolver.write_text(RESOLVER % {"host": json.dumps(HOST), "address": json.dumps(store.address)})
    options = {
        "--blobHost": store.address,
        "--blobPort": str(PORT),
        "--location": str(store.folder / "data"),
        "--cert": str(store.certificate.certificate),
        "--key": str(store.certificate.key),
    }
    given = [part for option in options.items() for part in option]
    flags = ["--skipApiVersionCheck", "--disableTelemetry", "--silent", "--oauth", "basic"]
    return [str(node()), "-r", str(resolver), str(program), *given, *flags]


def _environment(store: Azurite) -> Mapping[str, str]:
    return os.environ | {
        "AZURITE_ACCOUNTS": f"{ACCOUNT}:{store.key}",
        "NODE_EXTRA_CA_CERTS": str(store.certificate.authority),
    }


def _await_answer(store: Azurite, process: psutil.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = re.sub(r"\s+", " ", log.read_text(errors="replace"))[-800:]
            raise RuntimeError(f"Azurite ended with exit code {process.returncode} while it started: {said}")
        try:
            store.request("GET", "", store.account_sas(), comp="list").raise_for_status()
        except requests.ConnectionError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"Azurite did not answer within {START_SECONDS} s (log: {log})")
