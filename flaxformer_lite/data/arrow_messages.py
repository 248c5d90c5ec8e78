"""The unpacked sizes of the compressed batches in an arrow file, which pyarrow does not tell.

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
DICTIONARY = 2  # kinds of header of a Message
BATCH = 3
UNCOMPRESSED = -1  # in place of a buffer's length: it is stored as it is


Check = Callable[[int, int], None]  # of the bytes stored, and what they unpack to


def check_all(
    arrow: ModuleType, source: "pyarrow.NativeFile", batches: int | None, check: Check
) -> None:
    """Checks each message of a file, and goes back to its beginning.

    Args:
      arrow: pyarrow.
      source: the file.
      batches: how many the file has; None for a stream.
      check: raises for a batch that grows too much.

    Raises:
      ValueError: a header is damaged.
    """
    for _ in _messages(arrow, source, batches, check):
        pass
    source.seek(0)


class CheckedStream(io.RawIOBase):
    """The messages of a file as a stream, each checked before anybody sees it.

    So what is read once, such as an object in a store, is read once.
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
    """Yields the messages that `check` passes."""
    source.seek(0)
    source.seek(8 if source.read(len(MAGIC)) == MAGIC else 0)
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
