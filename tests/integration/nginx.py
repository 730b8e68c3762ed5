"""nginx from Debian as a proxy with TLS and basic auth, as a child process in a folder of its own."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.certificates import Certificate
from workbench.ports import HOST, answers, choose

START_SECONDS = 120
CONFIGURATION = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen {host}:{port} ssl;
        ssl_certificate {certificate.certificate};
        ssl_certificate_key {certificate.key};
        auth_basic "schema registry";
        auth_basic_user_file {folder}/users;
        location / {{
            proxy_pass {upstream};
            # The registry behind it needs no login, and must not see ours.
            proxy_set_header Authorization "";
        }}
    }}
}}
"""


@contextmanager
def tls_proxy(
    folder: Path, upstream: str, certificate: Certificate, username: str, password: str
) -> Iterator[int]:
    """Run nginx in front of `upstream` (`http://host:port`); the value is its port on loopback."""
    folder.mkdir(parents=True)
    port = choose(["nginx"], {})["nginx"]
    (folder / "users").write_text(f"{username}:{_hashed(password)}\n", "utf-8")
    (folder / "nginx.conf").write_text(
        CONFIGURATION.format(folder=folder, host=HOST, port=port, certificate=certificate, upstream=upstream)
    )
    output = folder / "output.log"
    command = [
        _program(),
        "-p",
        str(folder),
        "-e",
        str(folder / "start.log"),
        "-c",
        str(folder / "nginx.conf"),
    ]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            _await_port(process, port, output)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(120)
            finally:
                process.kill()


def _program() -> str:
    """Find nginx; Debian puts it where a plain user's PATH does not look."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise AssertionError("this test needs nginx, which is missing; try: apt-get install -y nginx-light")
    return program


def _hashed(password: str) -> str:
    """Hash a password as htpasswd does; it goes through a pipe, as a process list shows arguments."""
    command = ["openssl", "passwd", "-apr1", "-stdin"]
    return subprocess.run(
        command, input=password, capture_output=True, text=True, encoding="utf-8", check=True
    ).stdout.strip()


def _await_port(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"nginx does not listen on port {port}: {output.read_text()}")
        time.sleep(0.05)
