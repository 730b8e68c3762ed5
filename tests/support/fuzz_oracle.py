"""What a damaged record is, told by fastavro with a check of its end; and as Avro says, where it is laxer.

fastavro's own reader walks the schema; only the reading of single values is replaced, where fastavro differs:
- a boolean is the byte 1 or it is false (fastavro: any other byte than 0 is true). Avro knows 0 and 1 only;
- an int has at most 5 bytes and 32 bits, a long 10 and 64, as in all of Java's (fastavro: any number);
- an index of an enum or a union is not negative (fastavro counts from the end, as Python does);
- a length or the size of a block is not negative (fastavro reads up to the end, or ignores it), and there is
  no count of -2^63 (whose absolute value is no long);
- text keeps its bytes (fastavro refuses what is not UTF-8; Java and Spark don't look);
- a decimal has at least one byte and at most its precision's digits; a time in ms fits 64 bits of µs.
"""

from __future__ import annotations

import io
import json
from decimal import Decimal

from fastavro import _read_py, parse_schema
from fastavro.io.binary_decoder import BinaryDecoder


class RefusedError(ValueError):
    """Avro has no value for these bytes."""


class Text(bytes):
    """Bytes of a string, told from those of `bytes` and `fixed` in a union."""


class Decoder(BinaryDecoder):
    """Reads single values, and notes where in the record each union, enum and length begins."""

    def __init__(self, stream):
        super().__init__(stream)
        self.places = {"union": [], "enum": [], "length": []}

    def varint(self, most_bytes):
        number = 0
        for place in range(most_bytes):
            (byte,) = self.fo.read(1) or self.refuse("cut off")
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                number &= (1 << (32 if most_bytes == 5 else 64)) - 1
                return (number >> 1) ^ -(number & 1)
        return self.refuse("a number without end")

    @staticmethod
    def refuse(why):
        raise RefusedError(why)

    def read_int(self):
        return self.varint(5)

    def read_long(self):
        return self.varint(10)

    def read_boolean(self):
        return self.read_fixed(1) == b"\1"

    def read_length(self):
        self.places["length"].append(self.fo.tell())
        length = self.varint(10)
        return length if length >= 0 else self.refuse("a negative length")

    def read_bytes(self):
        return self.read_fixed(self.read_length())

    def read_utf8(self, handle_unicode_errors="strict"):
        return Text(self.read_bytes())

    def read_index(self):
        self.places["union"].append(self.fo.tell())
        index = self.varint(5)
        return index if index >= 0 else self.refuse("a negative branch")

    def read_enum(self):
        self.places["enum"].append(self.fo.tell())
        index = self.varint(5)
        return index if index >= 0 else self.refuse("a negative symbol")

    def read_array_start(self):
        self.places["length"].append(self.fo.tell())
        super().read_array_start()

    read_map_start = read_array_start

    def _iter_array_or_map(self):
        while self._block_count != 0:
            if self._block_count < 0 and (self.read_long() < 0 or self._block_count == -(2**63)):
                self.refuse("a negative size of a block")
            for _ in range(abs(self._block_count)):
                yield
            self._block_count = self.read_long()

    iter_array = iter_map = _iter_array_or_map


def plain(schema):
    """Return the schema without logical types, which fastavro would turn into objects of Python."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key != "logicalType"}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


def read(schema, payload):
    """Return `(value, places)` of one whole record; raises what fastavro raises, or RefusedError."""
    stream, names = io.BytesIO(payload), {}
    decoder = Decoder(stream)
    parsed = parse_schema(plain(schema), names)
    named = {"writer": names, "reader": {}}
    value = _read_py.read_data(decoder, parsed, named, None, {"return_record_name": True})
    if stream.tell() != len(payload):
        raise RefusedError("bytes are left")
    return value, decoder.places


def oracle(schema, payload):
    """Return what a row must hold, in the form of `comparable`; None: it is not a record."""
    try:
        return expected(schema, read(schema, payload)[0])
    except (RefusedError, EOFError, IndexError, TypeError, ValueError):
        return None


def expected(schema, value):
    """Return a value as `comparable` shows it."""
    if isinstance(schema, list):
        return _of_union(schema, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return tuple(expected(field["type"], value[field["name"]]) for field in schema["fields"])
    if kind == "array":
        return tuple(expected(schema["items"], each) for each in value)
    if kind == "map":
        return tuple(sorted((bytes(key), expected(schema["values"], each)) for key, each in value.items()))
    if kind == "enum":
        return value.encode()
    if isinstance(schema, dict) and "logicalType" in schema:
        return _of_logical(schema, value)
    if kind in ("float", "double"):
        return repr(value)
    return bytes(value) if isinstance(value, bytes) else value


def _of_logical(schema, value):
    if schema["logicalType"] == "decimal":
        if not value:
            raise RefusedError("a number of no bytes")
        unscaled = int.from_bytes(value, "big", signed=True)
        if len(str(abs(unscaled))) > schema["precision"]:
            raise RefusedError("more digits than the schema says")
        sign, digits, _ = Decimal(unscaled).as_tuple()  # not scaleb(), which rounds to 28 digits
        return format(Decimal((sign, digits, -schema["scale"])), "f")
    if schema["logicalType"] == "timestamp-millis" and not -(2**63) <= value * 1000 < 2**63:
        raise RefusedError("no time that fits")
    return value * 1000 if schema["logicalType"] == "timestamp-millis" else value


def _of_union(branches, value):
    """Spark shows a union of null and one type as that type, of numbers as the wider, else as member0, ..."""
    others = [branch for branch in branches if branch != "null"]
    if value is None:
        return None
    if others in (["int", "long"], ["float", "double"]):
        return expected(others[1], value)
    if len(others) == 1:
        return expected(others[0], value[1] if _name(others[0]) == "record" else value)
    names = [_name(branch) for branch in others]
    place = names.index(_kind_of(value))
    inner = value[1] if isinstance(value, tuple) else value
    return tuple(expected(branch, inner) if at == place else None for at, branch in enumerate(others))


def _name(branch):
    return branch["type"] if isinstance(branch, dict) else branch


def _kind_of(value):
    kinds = ((tuple, "record"), (Text, "string"), (bytes, "bytes"), (str, "enum"), (bool, "boolean"))
    kinds += ((int, "long"), (float, "double"), (list, "array"), (dict, "map"))
    return next(name for kind, name in kinds if isinstance(value, kind))


def record(name, *types):
    """Return a record whose fields are called after it, so that no two schemas share a column."""
    fields = [{"name": f"{name}_{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def text(schema):
    """Return the schema's JSON."""
    return json.dumps(schema)
