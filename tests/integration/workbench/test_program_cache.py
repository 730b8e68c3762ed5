"""Programs from npm and from Go's module proxy are those that the project was tested with."""

import json
import shutil

import pytest

from topiclake.errors import PlatformError
from workbench.host.program_cache import go_program, npm_program
from workbench.services import s3_gateway

#: Of ms 2.1.3, a package of one file.
INTEGRITY = "sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA=="


@pytest.fixture
def locked(tmp_path):
    def made(integrity, scripts=False):
        folder = tmp_path / "locked" / "ms"
        folder.mkdir(parents=True, exist_ok=True)
        package = {"name": "of-a-test", "private": True, "dependencies": {"ms": "2.1.3"}}
        if scripts:
            package["scripts"] = {"install": f"touch {tmp_path}/ran", "postinstall": f"touch {tmp_path}/ran"}
        (folder / "package.json").write_text(json.dumps(package))
        packages = {"": package, "node_modules/ms": {"version": "2.1.3", "integrity": integrity}}
        lock = {"name": "of-a-test", "lockfileVersion": 3, "requires": True, "packages": packages}
        (folder / "package-lock.json").write_text(json.dumps(lock))
        return folder

    return made


def test_a_package_is_fetched_once_runs_no_script_and_has_the_sum_of_the_lock(tmp_path, locked):
    reports = []
    for _ in range(2):
        program = npm_program(tmp_path / "cache", locked(INTEGRITY, scripts=True), "index.js", reports.append)
        assert "module.exports" in program.read_text()
    assert reports == ["ms: fetching it from npm (once, about 20 s)"]
    assert not (tmp_path / "ran").exists()

    with pytest.raises(PlatformError, match=r"could not install ms.*EINTEGRITY"):
        npm_program(
            tmp_path / "cache",
            locked(INTEGRITY.replace("sha512-6F", "sha512-7F")),
            "index.js",
            reports.append,
        )


def test_a_go_program_whose_module_has_another_sum_than_the_lock_is_not_built(tmp_path):
    locked = tmp_path / "versitygw"
    shutil.copytree(s3_gateway.LOCKED, locked)
    lock = locked / "go.sum"
    lines = lock.read_text().splitlines(keepends=True)
    module = "github.com/versity/versitygw v1.8.0 "
    assert [line.startswith(module) for line in lines].count(True) == 1
    lock.write_text(
        "".join(f"{module}h1:{'A' * 43}=\n" if line.startswith(module) else line for line in lines)
    )
    with pytest.raises(PlatformError, match=r"could not build versitygw: .*checksum mismatch"):
        go_program(tmp_path / "cache", locked, s3_gateway.PACKAGE, lambda _: None)
    assert not (tmp_path / "cache" / "versitygw" / "versitygw").exists()
