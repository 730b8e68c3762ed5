"""Protobuf schemas come from whoever may register one: the compiler runs nothing of theirs."""

import json

import pytest
from google.protobuf import descriptor_pb2

from topiclake.formats.protobuf import schema as protobuf_schema

MAIN = 'syntax = "proto3"; import "common.proto"; message M { Common common = 1; }'
COMMON = 'syntax = "proto3"; message Common { int32 id = 1; }'
TELLING = """\
import json, os, resource, sys
limits = [resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in ("CPU", "AS", "FSIZE")]
print(json.dumps([sorted(os.environ), limits, sys.argv[-1]]), file=sys.stderr)
sys.exit(1)
"""


def names(files):
    return [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(files).file]


def test_a_schema_is_compiled_with_what_it_imports():
    compiled = protobuf_schema.compiled(MAIN, (("common.proto", COMMON), ("unused.proto", COMMON)))
    assert names(compiled) == ["common.proto", protobuf_schema.MAIN]


def test_a_described_schema_is_compiled_with_text_that_it_imports():
    text = protobuf_schema.compiled(MAIN, (("common.proto", COMMON),))
    main = descriptor_pb2.FileDescriptorSet.FromString(text).file[-1]
    described = protobuf_schema.base64.b64encode(main.SerializeToString()).decode()
    compiled = protobuf_schema.compiled(described, (("common.proto", COMMON),))
    assert [message.full_name for message in protobuf_schema.messages(compiled, ())] == ["M"]


@pytest.mark.parametrize(
    "name",
    [
        "--plugin=protoc-gen-x={program}",
        "-I/",
        "@{program}",
        "/etc/x.proto",
        "../x.proto",
        "a/../../x.proto",
        "a\\x.proto",
        'x";import"y.proto',
        "x.proto\n",
        "",
    ],
)
def test_the_name_of_a_reference_is_no_option_and_no_path_elsewhere(tmp_path, name):
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    references = ((name.format(program=program), COMMON), ("--x_out=out", COMMON))
    with pytest.raises(ValueError, match="it imports a file of the name"):
        protobuf_schema.compiled(MAIN, references)
    assert not ran.exists()


def test_the_compiler_has_no_environment_and_limits(monkeypatch):
    monkeypatch.setenv("TOPICLAKE_SECRET_X_Y", "secret")
    monkeypatch.setattr(
        protobuf_schema, "_COMPILER", protobuf_schema._COMPILER.rpartition("sys.exit")[0] + TELLING
    )
    with pytest.raises(ValueError, match="it does not compile") as raised:
        protobuf_schema.compiled(MAIN + " ", (("common.proto", COMMON),))
    environment, limits, last = json.loads(str(raised.value).partition(": ")[2])
    assert set(environment) <= {"PYTHONPATH", "LC_CTYPE"}
    assert limits == [30, 2 << 30, 64 << 20]
    assert last == protobuf_schema.MAIN


def test_a_compiler_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(protobuf_schema, "_COMPILER", "import time; time.sleep(600)")
    monkeypatch.setattr(protobuf_schema, "_TIMEOUT", 0.5)
    with pytest.raises(ValueError, match=r"within 0\.5 seconds"):
        protobuf_schema.compiled(MAIN + "  ", (("common.proto", COMMON),))


def test_what_the_compiler_says_is_told():
    with pytest.raises(ValueError, match=r"it does not compile: .*Expected"):
        protobuf_schema.compiled('syntax = "proto3"; message {', ())
