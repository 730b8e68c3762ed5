"""A package that only an extra brings is asked for where it is used, and named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from topiclake.errors import PlatformError, require_extra

#: Modules of the extras. Python takes None for one that is not installed.
EXTRAS = (
    "google.protobuf",
    "grpc_tools",
    "sqlalchemy",
    "pymysql",
    "psycopg",
    "openlineage",
    "jupyterlab",
    "click",
)


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}));"
    return subprocess.run(
        [sys.executable, "-c", f"{blocked}{code}"], capture_output=True, text=True, check=False
    )


def test_the_library_needs_no_extra_for_avro_and_json() -> None:
    names = "tl.start_ingest, tl.audit_ingest, tl.start_avro_writer, tl.start_files, tl.replay_quarantine"
    done = without_extras(f"import topiclake as tl; print(len([{names}]))")
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


@pytest.mark.parametrize(
    ("code", "module", "extra"),
    [
        ("import topiclake as tl; tl.start_upsert", "sqlalchemy", "jdbc"),
        ("from topiclake.formats.registered import protobuf; protobuf(())", "google.protobuf", "protobuf"),
    ],
)
def test_an_extra_that_is_missing_is_named_where_it_is_needed(code: str, module: str, extra: str) -> None:
    said = f"{module} is not installed; try: pip install 'topiclake[{extra}]' [TL-PLATFORM-001]"
    assert said in without_extras(code).stderr


def test_the_command_line_names_its_extra() -> None:
    done = without_extras("from workbench.__main__ import main; sys.exit(main())")
    assert done.stderr == "✗ click is not installed; try: pip install 'topiclake[workbench]'\n"
    assert done.returncode == 1


def test_a_missing_module_has_fields() -> None:
    require_extra("jdbc", "sqlalchemy")
    with pytest.raises(PlatformError) as raised:
        require_extra("lineage", "no_such_package.client")
    assert raised.value.fields == {"module": "no_such_package.client", "extra": "lineage", "reason": "extra"}
