import struct
from uuid import UUID

import pytest

from topiclake.schema_registry import wire_format

GUID = "89791762-2336-186f-9674-180ca8e24a1b"


@pytest.mark.parametrize("schema_id", [0, 1, 255, 256, 70_000, 2**31 - 1, 2**31, 2**32 - 1])
def test_the_header_is_zero_and_the_id_in_four_big_endian_bytes(schema_id):
    assert wire_format.header(schema_id) == struct.pack(">bI", 0, schema_id)
    assert len(wire_format.header(schema_id)) == wire_format.HEADER_LENGTH


@pytest.mark.parametrize(("signed", "unsigned"), [(-1, 2**32 - 1), (-(2**31), 2**31)])
def test_an_id_as_java_prints_it_has_the_header_of_its_four_bytes(signed, unsigned):
    assert wire_format.header(signed) == wire_format.header(unsigned)


@pytest.mark.parametrize("key", [0, 1, 70_000, 2**31 - 1, -(2**31), -1, GUID])
def test_a_schema_is_found_again_from_the_bytes_that_name_it(key):
    assert wire_format.schema_key(wire_format.identifier(key)) == key


def test_a_guid_stands_behind_magic_byte_one():
    assert wire_format.identifier(GUID) == b"\1" + UUID(GUID).bytes
    assert len(wire_format.identifier(GUID)) == wire_format.GUID_HEADER_LENGTH


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\0\0\0\0\1\2",
        b"\1\0\0\0\1",
        b"\0" + UUID(GUID).bytes,
        b"\1" + UUID(GUID).bytes[:-1],
        b"\2" + UUID(GUID).bytes,
        b"\1" + UUID(GUID).bytes + b"\0",
    ],
)
def test_other_bytes_name_no_schema(found):
    assert wire_format.schema_key(found) is None


def test_the_frame_is_header_and_payload():
    assert wire_format.frame(258, b"\x02a") == b"\0\0\0\x01\x02\x02a"
    assert wire_format.frame(1, b"") == wire_format.header(1)


@pytest.mark.parametrize("schema_id", [-(2**31) - 1, 2**32])
def test_an_id_that_does_not_fit_is_refused(schema_id):
    with pytest.raises(OverflowError):
        wire_format.header(schema_id)
