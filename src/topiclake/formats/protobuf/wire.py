"""Numbers and lengths of Protobuf's wire format, for many messages at once. Workers import this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from numpy.typing import NDArray

#: The bytes of all messages, and zeros for a field after the last one.
Bytes = NDArray[np.uint8]
#: Positions in the bytes, or numbers of rows.
Positions = NDArray[np.int64]
#: Reads a value at each position, with the ends of the messages. Returns the values, and where each ends. -1:
#: it is no value, or Google's library has to read it.
Read = Callable[[Bytes, Positions, Positions], tuple[Any, Positions]]

VARINT, FIXED_64, LENGTH, FIXED_32 = 0, 1, 2, 5
#: The types of numbers of four and eight bytes.
_FIXED = {
    FieldDescriptor.TYPE_DOUBLE: "<f8",
    FieldDescriptor.TYPE_FIXED64: "<u8",
    FieldDescriptor.TYPE_SFIXED64: "<i8",
    FieldDescriptor.TYPE_FLOAT: "<f4",
    FieldDescriptor.TYPE_FIXED32: "<u4",
    FieldDescriptor.TYPE_SFIXED32: "<i4",
}
#: The largest tag, and the longest number.
_PADDING = 5 + 10
#: Longer texts, in bytes, are copied one by one: at once, each byte needs 16 bytes of memory meanwhile.
_LONG = 100


def _zigzag(bits: Any, signed: type) -> Any:  # noqa: ANN401 (arrays of any width)
    return (bits >> 1).view(signed) ^ -(bits & 1).view(signed)


#: The numbers of varints; bits beyond those of a type are dropped.
_VARINTS: dict[int, Callable[[NDArray[np.uint64]], NDArray[Any]]] = {
    FieldDescriptor.TYPE_INT64: lambda bits: bits.view(np.int64),
    FieldDescriptor.TYPE_UINT64: lambda bits: bits,
    FieldDescriptor.TYPE_SINT64: lambda bits: _zigzag(bits, np.int64),
    FieldDescriptor.TYPE_INT32: lambda bits: bits.astype(np.uint32).view(np.int32),
    FieldDescriptor.TYPE_UINT32: lambda bits: bits.astype(np.uint32),
    FieldDescriptor.TYPE_SINT32: lambda bits: _zigzag(bits.astype(np.uint32), np.int32),
    FieldDescriptor.TYPE_ENUM: lambda bits: bits.astype(np.uint32).view(np.int32),
    FieldDescriptor.TYPE_BOOL: lambda bits: bits != 0,
}


def messages(values: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """Return the bytes of values, where each begins, and where it ends; a null has none."""
    # With the last value, an empty array has buffers, too.
    values = pa.concat_arrays([values.cast(pa.binary()).fill_null(b""), pa.array([bytes(_PADDING)])])
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values)).astype(np.int64)
    return np.frombuffer(content, np.uint8), ends[:-1], ends[1:]


def tag(number: int, wire_type: int) -> bytes:
    """Return the bytes in front of a value."""
    encoded, left = bytearray(), number << 3 | wire_type
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


def has_tag(encoded: bytes, data: Bytes, at: Positions, ends: Positions) -> NDArray[np.bool_]:
    """Say at which positions a tag is, before the ends of the messages."""
    found = at < ends
    for index, byte in enumerate(encoded):
        found &= data[at + index] == byte
    return found


def number(field_type: int) -> tuple[int, Read] | None:
    """Return the wire type of numbers and what reads them into an array; None: the type is no number."""
    if field_type in _VARINTS:
        return VARINT, _of_varints(_VARINTS[field_type])
    if field_type in _FIXED:
        wire_type = FIXED_64 if np.dtype(_FIXED[field_type]).itemsize == 8 else FIXED_32
        return wire_type, _of_fixed(_FIXED[field_type])
    return None


def _of_varints(of_bits: Callable[[NDArray[np.uint64]], NDArray[Any]]) -> Read:
    def read(data: Bytes, at: Positions, ends: Positions) -> tuple[NDArray[Any], Positions]:
        bits, after = _varints(data, at, 10)
        return of_bits(bits), after

    return read


def _of_fixed(number_type: str) -> Read:
    size = np.dtype(number_type).itemsize

    def read(data: Bytes, at: Positions, ends: Positions) -> tuple[NDArray[Any], Positions]:
        # A number may begin at any byte.
        numbers: NDArray[Any] = np.ndarray((len(data) - size + 1,), number_type, data, strides=(1,))
        return numbers[at], at + size

    return read


def texts(text_type: pa.DataType) -> Read:
    """Return what reads strings or bytes."""

    def read(data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        begins, after = lengths(data, at, ends)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(after - begins)])
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), _slices(data, begins, after, offsets)]
        found = pa.Array.from_buffers(pa.binary(), len(at), buffers)
        try:
            return found.cast(text_type), after
        except pa.ArrowInvalid:
            decoded = [_utf8(text) for text in found.to_pylist()]
        is_text = np.array([text is not None for text in decoded])
        return pa.array(decoded, text_type), np.where(is_text, after, -1)

    return read


def _slices(data: Bytes, begins: Positions, ends: Positions, offsets: Positions) -> pa.Buffer:
    """Return the bytes of slices, one after another; each is to begin at an offset."""
    if offsets[-1] > _LONG * len(begins):
        view = data.data
        slices = zip(begins.tolist(), ends.tolist(), strict=True)
        return pa.py_buffer(b"".join([view[begin:end] for begin, end in slices]))
    return pa.py_buffer(data[np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], ends - begins)])


def _utf8(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def lengths(data: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Return where values with lengths begin and end; -1: beyond the ends of the messages."""
    sizes, begins = _varints(data, at, 5)
    after = begins + sizes.view(np.int64)
    is_whole = (begins >= 0) & (after <= ends)
    return np.where(is_whole, begins, -1), np.where(is_whole, after, -1)


def _varints(data: Bytes, at: Positions, most: int) -> tuple[NDArray[np.uint64], Positions]:
    """Read varints of at most some bytes; return their bits, and where they end."""
    bits, after = np.zeros(len(at), np.uint64), np.full(len(at), -1)
    rows = np.arange(len(at))
    for index in range(most):
        byte = data[at[rows] + index]
        bits[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        is_last = byte < 0x80
        after[rows[is_last]] = at[rows[is_last]] + index + 1
        rows = rows[~is_last]
        if not len(rows):
            break
    return bits, after
