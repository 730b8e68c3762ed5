"""Protobuf schemas of the registry → descriptors, and the columns of their messages."""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from topiclake.errors import require_extra

#: The files that a schema may import without a reference.
_OWN_FILES: dict[str, FileDescriptor] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        *(any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2),
        *(source_context_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2),
    )
}
#: A name for the file of a schema: the registry does not return one.
MAIN = "topiclake_value.proto"
#: Allowed names of files: no option of the compiler, and no path outside of its folder.
_FILE_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
#: Seconds; the compiler takes a fraction of one.
_TIMEOUT = 60
#: The compiler in a separate process: anyone who may register a schema decides its input. It may use 30
#: seconds of CPU and 2 GiB of memory, and write files of 64 MiB.
_COMPILER = """\
import resource, sys
from grpc_tools import protoc
for limit, most in (("CPU", 30), ("AS", 2 << 30), ("FSIZE", 64 << 20)):
    resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (most, most))
sys.exit(protoc.main(sys.argv))
"""

_SCALARS = {
    FieldDescriptor.TYPE_INT32: "integer",
    FieldDescriptor.TYPE_SINT32: "integer",
    FieldDescriptor.TYPE_SFIXED32: "integer",
    FieldDescriptor.TYPE_INT64: "long",
    FieldDescriptor.TYPE_SINT64: "long",
    FieldDescriptor.TYPE_SFIXED64: "long",
    FieldDescriptor.TYPE_UINT32: "long",
    FieldDescriptor.TYPE_FIXED32: "long",
    FieldDescriptor.TYPE_UINT64: "decimal(20,0)",
    FieldDescriptor.TYPE_FIXED64: "decimal(20,0)",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_ENUM: "string",
    FieldDescriptor.TYPE_BYTES: "binary",
}
#: Messages that are one value. Struct, Value and ListValue hold themselves: they are JSON, as text.
_VALUES = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Struct": "string",
    "google.protobuf.Value": "string",
    "google.protobuf.ListValue": "string",
}


@lru_cache(maxsize=1000)
def compiled(schema: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """Compile a schema, and return it with its imports as a `FileDescriptorSet`, dependencies first.

    Args:
        schema: A .proto file, or a `FileDescriptorProto` in base64, as which Confluent's client for Python
            registers it.
        references: Name and text of each file that it imports.

    Raises:
        ValueError: It does not compile; says why.
    """
    described = {name: _described(text, name) for name, text in (*references, (MAIN, schema))}
    texts = {name: text for name, text in (*references, (MAIN, schema)) if described[name] is None}
    files = {name: file for name, file in described.items() if file is not None}
    if texts and files and MAIN in texts:
        raise ValueError("it is text, and imports schemas that are no text")
    if texts:
        files = {file.name: file for file in _protoc(texts).file} | files
    ordered = descriptor_pb2.FileDescriptorSet(file=_ordered(MAIN, files))
    return bytes(ordered.SerializeToString(deterministic=True))


def _described(text: str, name: str) -> descriptor_pb2.FileDescriptorProto | None:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name
    return file


def _protoc(texts: Mapping[str, str]) -> descriptor_pb2.FileDescriptorSet:
    require_extra("protobuf", "grpc_tools")
    import grpc_tools

    # Names of references are never arguments: the main file, or one in its place, imports them.
    imports = "".join(f'import "{name}";\n' for name in texts)
    texts = {MAIN: f'syntax = "proto3";\n{imports}'} | dict(texts)
    with tempfile.TemporaryDirectory(prefix="topiclake-protobuf-") as folder:
        for name, text in texts.items():
            if not _FILE_NAME.fullmatch(name):
                raise ValueError(f"it imports a file of the name {name!r}")
            file = Path(folder, "in", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        package, out = Path(grpc_tools.__file__).parent, Path(folder, "out")
        paths = (f"--proto_path={folder}/in", f"--proto_path={package / '_proto'}")
        try:
            process = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    _COMPILER,
                    *paths,
                    "--include_imports",
                    f"--descriptor_set_out={out}",
                    MAIN,
                ],
                env={"PYTHONPATH": str(package.parent)},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"it does not compile within {_TIMEOUT} seconds") from None
        if process.returncode:
            message = " ".join(process.stderr.replace(f"{folder}/in/", "").split())
            raise ValueError(f"it does not compile: {message[:500] or f'exit code {process.returncode}'}")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _ordered(
    name: str, files: Mapping[str, descriptor_pb2.FileDescriptorProto]
) -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the file `name` and all it imports, what is imported first."""
    ordered: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def visit(name: str) -> None:
        if name in ordered:
            return
        file = files.get(name)
        if file is None:
            if name not in _OWN_FILES:
                raise ValueError(f"it imports {name}, which is no reference of its version in the registry")
            file = descriptor_pb2.FileDescriptorProto()
            _OWN_FILES[name].CopyToProto(file)
        for imported in file.dependency:
            visit(imported)
        ordered[name] = file

    visit(name)
    return list(ordered.values())


def messages(files: bytes, names: Iterable[str]) -> list[Descriptor]:
    """Return the messages that values may be: those of `names`, or the first one of the main file.

    Raises:
        ValueError: The main file has no such message.
    """
    pool, described = DescriptorPool(), descriptor_pb2.FileDescriptorSet.FromString(files).file
    for file in described:
        pool.Add(file)
    main, allowed = described[-1], set(names)
    listed = [f"{main.package}.{message.name}".lstrip(".") for message in main.message_type]
    chosen = [name for name in listed if name in allowed] if allowed else listed[:1]
    if not chosen:
        raise ValueError(
            f"its messages are {', '.join(listed) or 'none'}, and not {' or '.join(sorted(allowed)) or 'one'}"
        )
    return [pool.FindMessageTypeByName(name) for name in chosen]


def shape(message: Descriptor, ancestors: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the columns of a message, as `StructType.json()` has them.

    Raises:
        ValueError: It holds itself, or names of its fields differ only in case.
    """
    if message.full_name in ancestors:
        raise ValueError(f"message {message.full_name} holds itself, and a table's columns end somewhere")
    if len({field.name.lower() for field in message.fields}) < len(message.fields):
        raise ValueError(f"fields of message {message.full_name} differ in the case of their names alone")
    inner = (*ancestors, message.full_name)
    fields = [
        {"name": field.name, "type": _of_field(field, inner), "nullable": True, "metadata": {}}
        for field in message.fields
    ]
    return {"type": "struct", "fields": fields}


def _of_field(field: FieldDescriptor, ancestors: tuple[str, ...]) -> Any:  # noqa: ANN401 (JSON)
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        values = _of_value(message.fields_by_name["value"], ancestors)
        return {"type": "map", "keyType": "string", "valueType": values, "valueContainsNull": True}
    if field.is_repeated:
        return {"type": "array", "elementType": _of_value(field, ancestors), "containsNull": True}
    return _of_value(field, ancestors)


def _of_value(field: FieldDescriptor, ancestors: tuple[str, ...]) -> Any:  # noqa: ANN401
    message = field.message_type
    if message is None:
        return _SCALARS[field.type]
    if message.full_name in _VALUES:
        return _VALUES[message.full_name]
    if message.file.name == "google/protobuf/wrappers.proto":
        return _SCALARS[message.fields_by_name["value"].type]
    # Delta stores no struct without fields: there it is true, or null.
    return shape(message, ancestors) if message.fields else "boolean"


#: For two types, the type that holds the values of both.
_WIDER = {("integer", "long"): "long", ("float", "double"): "double"}


def united(first: Any, second: Any, path: str = "") -> Any:  # noqa: ANN401
    """Return the columns that hold values of both.

    Raises:
        ValueError: No columns hold both; names the field.
    """
    if first == second:
        return first
    kinds = {each if isinstance(each, str) else each["type"] for each in (first, second)}
    if len(kinds) == 1 and not isinstance(first, str):
        if kinds == {"struct"}:
            return _united_structs(first, second, path)
        inner = "elementType" if kinds == {"array"} else "valueType"
        return first | {inner: united(first[inner], second[inner], path)}
    for pair, wider in _WIDER.items():
        if kinds == set(pair):
            return wider
    types = [each if isinstance(each, str) else each["type"] for each in (first, second)]
    raise ValueError(f"{path} is {types[0]} in earlier versions and would become {types[1]}")


def _united_structs(first: Any, second: Any, path: str) -> Any:  # noqa: ANN401
    fields = {field["name"]: field for field in first["fields"]}
    for field in second["fields"]:
        earlier = fields.get(field["name"])
        inner = f"{path}.{field['name']}".lstrip(".")
        kind = united(earlier["type"], field["type"], inner) if earlier else field["type"]
        fields[field["name"]] = field | {"type": kind}
    if len({name.lower() for name in fields}) < len(fields):
        raise ValueError(f"fields of {path or 'it'} and earlier versions differ in the case of their names")
    return {"type": "struct", "fields": list(fields.values())}
