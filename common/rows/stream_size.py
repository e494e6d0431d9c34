"""The decompressed size of an Arrow IPC stream, computed from its metadata alone.

A compressed buffer begins with its decompressed length, eight bytes that decide how much Arrow
allocates before it looks at the rest. 131 kB can request 4 GiB. So this module walks the messages
first and reads the few flatbuffer fields that matter (Arrow columnar format 1.5, `Message.fbs`).
It allocates no more than the stream holds, and an offset outside the stream is an error.
"""

from collections.abc import Iterator
from struct import Struct, error

_CONTINUATION = 0xFFFFFFFF
_U32, _I32, _U16, _I64, _BUFFER = (
    Struct("<I"),
    Struct("<i"),
    Struct("<H"),
    Struct("<q"),
    Struct("<qq"),
)
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_BUFFERS, _COMPRESSION = 2, 3
_DATA = 1


def stream_memory_bytes(stream: bytes) -> int:
    """Return the number of bytes of a stream's buffers after decompression.

    Raises:
        ValueError: The stream has incomplete messages, or an invalid length.
    """
    try:
        return sum(_batch_bytes(stream, *batch) for batch in _batches(stream))
    except (error, IndexError) as broken:
        raise ValueError(f"a message is damaged: {broken}") from broken


def _batches(stream: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the batches: offset of the batch table, begin and end of the message's body."""
    at = 0
    while at + 4 <= len(stream):
        size = _U32.unpack_from(stream, at)[0]
        at += 4
        if size == _CONTINUATION:
            size = _U32.unpack_from(stream, at)[0]
            at += 4
        if size == 0:
            return
        message = _target(stream, at)
        body = at + size
        length_at = _field(stream, message, _BODY_LENGTH)
        length = _I64.unpack_from(stream, length_at)[0] if length_at else 0
        if length < 0 or body + length > len(stream):
            raise ValueError(f"a message has a body of {length} bytes, which exceeds the stream")
        yield from _batch_of(stream, message, body, body + length)
        at = body + length


def _batch_of(stream: bytes, message: int, body: int, end: int) -> Iterator[tuple[int, int, int]]:
    kind_at, header_at = (_field(stream, message, each) for each in (_HEADER_TYPE, _HEADER))
    kind = stream[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or not header_at:
        return
    batch = _target(stream, header_at)
    if kind == _DICTIONARY_BATCH:
        data_at = _field(stream, batch, _DATA)
        if not data_at:
            return
        batch = _target(stream, data_at)
    yield batch, body, end


def _batch_bytes(stream: bytes, batch: int, body: int, end: int) -> int:
    """Return the decompressed size of a batch's buffers."""
    buffers_at = _field(stream, batch, _BUFFERS)
    if not buffers_at:
        return 0
    vector = _target(stream, buffers_at)
    count = _U32.unpack_from(stream, vector)[0]
    first, end_of_buffers = vector + 4, vector + 4 + count * _BUFFER.size
    if end_of_buffers > len(stream):
        raise ValueError(f"a batch has {count} buffers, which exceed the stream")
    packed = bool(_field(stream, batch, _COMPRESSION))
    total = 0
    for offset, length in _BUFFER.iter_unpack(stream[first:end_of_buffers]):
        begin = body + offset
        if offset < 0 or length < 0 or begin + length > end:
            raise ValueError(f"a buffer of {length} bytes at {offset} is outside its message")
        total += _unpacked(stream, begin, length) if packed and length else length
    return total


def _unpacked(stream: bytes, begin: int, length: int) -> int:
    """Return the decompressed length of a buffer; a stored -1 marks an uncompressed buffer."""
    if length < _I64.size:
        raise ValueError(f"a compressed buffer has only {length} bytes")
    stated: int = _I64.unpack_from(stream, begin)[0]
    if stated < -1:
        raise ValueError(f"a compressed buffer claims to hold {stated} bytes")
    return length - _I64.size if stated == -1 else stated


def _target(stream: bytes, at: int) -> int:
    """Return the target of the offset that is stored at a position."""
    target: int = at + _U32.unpack_from(stream, at)[0]
    return target


def _field(stream: bytes, table: int, number: int) -> int:
    """Return the position of a table's field; 0: the field is omitted."""
    vtable = table - _I32.unpack_from(stream, table)[0]
    if vtable < 0:
        raise ValueError(f"a table of fields begins at {vtable}")
    size = _U16.unpack_from(stream, vtable)[0]
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    offset = _U16.unpack_from(stream, vtable + entry)[0]
    return table + offset if offset else 0
