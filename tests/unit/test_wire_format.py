import struct

import pytest

from topiclake import wire_format


@pytest.mark.parametrize("schema_id", [0, 1, 255, 256, 70_000, 2**31 - 1, 2**31, 2**32 - 1])
def test_the_header_is_zero_and_the_id_in_four_big_endian_bytes(schema_id):
    assert wire_format.header(schema_id) == struct.pack(">bI", 0, schema_id)
    assert len(wire_format.header(schema_id)) == wire_format.HEADER_LENGTH


def test_the_frame_is_header_and_payload():
    assert wire_format.frame(258, b"\x02a") == b"\0\0\0\x01\x02\x02a"
    assert wire_format.frame(1, b"") == wire_format.header(1)


@pytest.mark.parametrize("schema_id", [-1, 2**32])
def test_an_id_that_does_not_fit_is_refused(schema_id):
    with pytest.raises(OverflowError):
        wire_format.header(schema_id)
