"""The unpacked sizes of the compressed batches in an arrow file, which pyarrow does not tell.

A message's header is a flatbuffer (Message.fbs of Apache Arrow).
"""

import struct
from typing import Any

MAGIC = b"ARROW1"
DICTIONARY = 2  # kinds of header of a Message
BATCH = 3
UNCOMPRESSED = -1  # in place of a buffer's length: it is stored as it is


def largest(arrow: Any, source: Any, batches: int | None) -> tuple[int, int]:
    """Returns the stored and the unpacked bytes of the batch that grows most.

    Args:
      arrow: pyarrow.
      source: the file, as a pyarrow.NativeFile.
      batches: how many the file has; None for a stream.

    Raises:
      ValueError: a header is damaged.
    """
    source.seek(0)
    source.seek(8 if source.read(len(MAGIC)) == MAGIC else 0)
    most = (0, 0)
    seen = 0
    for message in arrow.ipc.MessageReader.open_stream(source):
        if message.body is not None:
            try:
                unpacked = _unpacked(message.metadata.to_pybytes(), message.body)
            except struct.error:
                raise ValueError("the header of a batch is damaged") from None
            most = max(most, (message.body.size, unpacked), key=_growth)
        seen += message.type == "record batch"
        if seen == batches:
            break
    source.seek(0)
    return most


def _growth(sizes: tuple[int, int]) -> int:
    stored, unpacked = sizes
    return unpacked - stored


def _unpacked(header: bytes, body: Any) -> int:
    """Returns the bytes that the buffers of a message have unpacked."""
    (root,) = struct.unpack_from("<I", header)
    kind_at = _field(header, root, 1)
    kind = header[kind_at] if kind_at else 0
    batch = _table(header, root, 2)
    if kind == DICTIONARY:
        batch = _table(header, batch, 1)
    if kind not in (DICTIONARY, BATCH) or not _field(header, batch, 3):  # not compressed
        return 0
    buffers = _table(header, batch, 2)
    (count,) = struct.unpack_from("<I", header, buffers)
    total = 0
    for number in range(count):
        at, length = struct.unpack_from("<qq", header, buffers + 4 + 16 * number)
        if length:
            (unpacked,) = struct.unpack("<q", body[at : at + 8].to_pybytes())
            total += length if unpacked == UNCOMPRESSED else max(unpacked, 0)
    return total


def _field(header: bytes, table: int, number: int) -> int:
    """Returns the position of a table's field; 0 where it has none."""
    (back,) = struct.unpack_from("<i", header, table)
    offsets = table - back
    if offsets < 0:
        raise struct.error
    (size,) = struct.unpack_from("<H", header, offsets)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", header, offsets + 4 + 2 * number)
    return table + offset if offset else 0


def _table(header: bytes, table: int, number: int) -> int:
    """Returns the position of the table or vector that a field refers to."""
    at = _field(header, table, number)
    if not at:
        raise struct.error
    (offset,) = struct.unpack_from("<I", header, at)
    return at + offset
