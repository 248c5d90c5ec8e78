"""Checks the uncompressed sizes of the batches in an arrow file, which pyarrow does not report.

A message's header is a flatbuffer (Message.fbs of Apache Arrow).
"""

import io
import struct
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import Buffer

MAGIC = b"ARROW1"
# Values of MessageHeader in Message.fbs.
DICTIONARY = 2
BATCH = 3
UNCOMPRESSED = -1  # the length of a buffer that is stored without compression

# Function of the stored and the uncompressed bytes of a message; raises to reject it.
Check = Callable[[int, int], None]


def check_all(
    arrow: ModuleType, source: "pyarrow.NativeFile", batches: int | None, check: Check
) -> None:
    """Checks each message of a file, and goes back to its beginning.

    Args:
      arrow: pyarrow.
      source: the file.
      batches: the number of record batches in the file; None for a stream.
      check: raises for a batch that is too large when it is uncompressed.

    Raises:
      ValueError: a header is damaged.
    """
    for _ in _messages(arrow, source, batches, check):
        pass
    source.seek(0)


class CheckedStream(io.RawIOBase):
    """The messages of a file as a stream, each checked before it can be read.

    Unlike `check_all`, it reads the file once, which matters for an object in a store.
    """

    def __init__(
        self, arrow: ModuleType, source: "pyarrow.NativeFile", batches: int | None, check: Check
    ):
        self._messages = _messages(arrow, source, batches, check)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer") -> int:
        if not self._rest:
            message = next(self._messages, None)
            if message is None:
                return 0
            self._rest = memoryview(message.serialize()).cast("B")
        room = memoryview(buffer)
        count = min(len(room), len(self._rest))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _messages(
    arrow: ModuleType, source: "pyarrow.NativeFile", batches: int | None, check: Check
) -> Iterator["pyarrow.ipc.Message"]:
    """Yields the messages, each after `check` accepts it."""
    source.seek(0)
    has_magic = source.read(len(MAGIC)) == MAGIC
    source.seek(0)
    if has_magic:
        source.seek(8)  # MAGIC, and two bytes of padding
    seen = 0
    for message in arrow.ipc.MessageReader.open_stream(source):
        if message.body is not None:
            try:
                unpacked = _unpacked(message.metadata.to_pybytes(), message.body)
            except struct.error:
                raise ValueError("the header of a batch is damaged") from None
            check(message.body.size, unpacked)
        yield message
        seen += message.type == "record batch"
        if seen == batches:
            return


def _unpacked(header: bytes, body: "pyarrow.Buffer") -> int:
    """Returns the uncompressed bytes of a message's buffers; 0 if they are not compressed."""
    (root,) = struct.unpack_from("<I", header)
    kind_at = _field(header, root, 1)
    kind = 0
    if kind_at:
        kind = header[kind_at]
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
        if not length:
            continue
        (unpacked,) = struct.unpack("<q", body[at : at + 8].to_pybytes())
        if unpacked == UNCOMPRESSED:
            unpacked = length
        total += max(unpacked, 0)
    return total


def _field(header: bytes, table: int, number: int) -> int:
    """Returns the position of a table's field, or 0 if the table lacks it."""
    (back,) = struct.unpack_from("<i", header, table)
    offsets = table - back
    if offsets < 0:
        raise struct.error
    (size,) = struct.unpack_from("<H", header, offsets)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", header, offsets + 4 + 2 * number)
    if not offset:
        return 0
    return table + offset


def _table(header: bytes, table: int, number: int) -> int:
    """Returns the position of the table or vector that a field refers to."""
    at = _field(header, table, number)
    if not at:
        raise struct.error
    (offset,) = struct.unpack_from("<I", header, at)
    return at + offset
