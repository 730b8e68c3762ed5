"""Azure's blob store on this machine: Azurite, over TLS, with a separate account."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

from workbench.host.certificates import TRUST_PASSWORD, Certificate, make_certificate, trust_store
from workbench.host.files import replace_private
from workbench.host.installation import cache_folder
from workbench.host.java import Java
from workbench.host.ports import HOST as LOOPBACK
from workbench.host.ports import refusal
from workbench.host.program_cache import OnProgress, node, npm_program
from workbench.services.service import Service

#: The version, and the checksums of all packages.
LOCKED = Path(__file__).parent / "npm" / "azurite"
SCRIPT = "dist/src/blob/main.js"
ACCOUNT = "topiclake"
#: Names below `localhost` never leave the machine, so that no token can.
HOST = f"{ACCOUNT}.blob.localhost"
CONTAINER = "lake"
#: Of the REST API and of the tokens; the last whose string-to-sign has no encryption scope.
API_VERSION = "2019-12-12"
AZURE_TIME = "%Y-%m-%dT%H:%M:%SZ"
#: The JVM's options that make Hadoop's driver find the store and trust it.
JAVA_OPTIONS_VARIABLE = "WORKBENCH_AZURE_JAVA_OPTIONS"

#: To copy a blob, Azurite sends a request to its own address. So Node must resolve it, without a change of
#: this machine's hosts file.
RESOLVER = """\
const dns = require("dns");
const lookup = dns.lookup;
dns.lookup = (name, options, callback) =>
  lookup(name === %(host)s ? %(address)s : name, options, callback);
"""


@dataclass(frozen=True)
class Azurite(Service):
    """The Azure blob store of a home, with an account key that only this home knows."""

    name = "azure"
    port_names = ("azure",)

    @property
    def certificate(self) -> Certificate:
        """The certificate of the store, and the authority to trust."""
        return Certificate(*(self.folder / name for name in ("authority.pem", "server.pem", "server.key")))

    def program(self, on_progress: OnProgress = lambda _: None) -> Path:
        """Return Azurite, fetched from npm where the cache does not hold it."""
        return npm_program(cache_folder(), LOCKED, SCRIPT, on_progress)

    def address(self, ports: Mapping[str, int]) -> str:
        """Return the account's address."""
        return f"https://{HOST}:{ports['azure']}"

    def prepare(self, java: Java, ports: Mapping[str, int]) -> None:
        """Make the key, a certificate, and the files that resolve the account's host name."""
        super().prepare(java, ports)
        if not self._key_file.exists():
            replace_private(self._key_file, base64.b64encode(os.urandom(64)))
        trust_store(self.folder, make_certificate(self.folder, HOST, LOOPBACK))
        resolved = {"host": json.dumps(HOST), "address": json.dumps(LOOPBACK)}
        (self.folder / "resolver.js").write_text(RESOLVER % resolved, encoding="utf-8")
        (self.folder / "hosts").write_text(hosts_file({HOST: LOOPBACK}), encoding="utf-8")

    def command(self, java: Java, ports: Mapping[str, int]) -> list[str]:
        """Return the command that runs Azurite."""
        options = {
            "--blobHost": LOOPBACK,
            "--blobPort": str(ports["azure"]),
            "--location": str(self.folder / "blobs"),
            "--cert": str(self.certificate.certificate),
            "--key": str(self.certificate.key),
        }
        arguments = [part for option in options.items() for part in option]
        flags = ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        return [str(node()), "-r", str(self.folder / "resolver.js"), str(self.program()), *arguments, *flags]

    def environment(self) -> dict[str, str]:
        """Return the account with its key, and the authority."""
        return {
            "AZURITE_ACCOUNTS": f"{ACCOUNT}:{self.key()}",
            "NODE_EXTRA_CA_CERTS": str(self.certificate.authority),
        }

    def exports(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Return the variables that conf/local-azure.yaml names; the token is valid for a day."""
        options = {
            "jdk.net.hosts.file": self.folder / "hosts",
            "javax.net.ssl.trustStore": self.folder / "trust.p12",
            "javax.net.ssl.trustStorePassword": TRUST_PASSWORD,
        }
        return {
            "WORKBENCH_AZURE_SOURCE": f"wasbs://{CONTAINER}@{HOST}:{ports['azure']}/topiclake",
            "TOPICLAKE_SECRET_WORKBENCH_AZURE_SAS": account_sas(ACCOUNT, self.key()),
            JAVA_OPTIONS_VARIABLE: shlex.join(f"-D{name}={value}" for name, value in options.items()),
        }

    def problem(self, ports: Mapping[str, int], seconds: float = 2.0) -> str | None:
        """Make the container where it is missing; return None if the store answers, else the cause."""
        port, token = ports["azure"], account_sas(ACCOUNT, self.key())
        return refusal(
            port,
            "PUT",
            f"https://{LOOPBACK}:{port}/{CONTAINER}?restype=container&{token}",
            seconds,
            accepted=[HTTPStatus.CONFLICT],  # the container exists
            headers={"Host": f"{HOST}:{port}", "x-ms-version": API_VERSION},
            verify=str(self.certificate.authority),
        )

    def key(self) -> str:
        """Return the account's key, which signs tokens, as base64."""
        return self._key_file.read_text(encoding="ascii")

    @property
    def _key_file(self) -> Path:
        return self.folder / "key"


def account_sas(account: str, key: str) -> str:
    """Return a token for the whole account, signed with its key (base64), which is valid for a day.

    Source: "Construct an account SAS", https://learn.microsoft.com/rest/api/storageservices/create-account-sas
    """
    expiry = (datetime.now(timezone.utc) + timedelta(days=1)).strftime(AZURE_TIME)
    signed = [account, "racwdl", "b", "sco", "", expiry, "", "https", API_VERSION, ""]
    fields = {"sv": API_VERSION, "ss": "b", "srt": "sco", "se": expiry, "sp": "racwdl", "spr": "https"}
    return urlencode(fields | {"sig": sign(key, signed)})


def sign(key: str, lines: Sequence[str]) -> str:
    """Return the signature of a token's lines by an account's key, both as base64."""
    signature = hmac.new(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256)
    return base64.b64encode(signature.digest()).decode()


def hosts_file(more: Mapping[str, str]) -> str:
    """Return the hosts file for a JVM that must know `more`: with it, the JVM resolves nothing else."""
    names = sorted({"localhost", socket.gethostname(), socket.getfqdn()})
    return f"{LOOPBACK} {' '.join(names)}\n" + "".join(f"{at} {name}\n" for name, at in more.items())
