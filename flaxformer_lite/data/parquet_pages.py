"""Reads the uncompressed sizes of the pages in a parquet file, which pyarrow does not report.

A page's header is a Thrift struct in the compact protocol.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet

# Bytes to read for a header: enough for most, then the most that pyarrow reads.
HEADERS = (1 << 12, 1 << 24)
DEEPEST = 8  # levels of nested structs
# The ids of two fields of PageHeader in parquet.thrift.
UNCOMPRESSED = 2
COMPRESSED = 3
# The types of fields in Thrift's compact protocol that occur in a PageHeader.
BOOLEANS = (1, 2)
BYTE = 3
NUMBERS = (4, 5, 6)
TEXT = 8
STRUCT = 12


def largest(source: "pyarrow.NativeFile", chunk: "pyarrow.parquet.ColumnChunkMetaData") -> int:
    """Returns the uncompressed bytes of the largest page of a column chunk.

    The sizes in the file's footer are not trusted, as no reader compares them with the pages.

    Args:
      source: the file, as a pyarrow.NativeFile.
      chunk: a pyarrow.parquet.ColumnChunkMetaData.

    Raises:
      ValueError: a header is damaged.
    """
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    most = 0
    while at < end:
        sizes, length = _header(source, at, end)
        if sizes.get(COMPRESSED, -1) < 0 or sizes.get(UNCOMPRESSED, -1) < 0:
            raise ValueError(f"the header of the page at byte {at} is damaged")
        most = max(most, sizes[UNCOMPRESSED])
        at += length + sizes[COMPRESSED]
    return most


def _header(source: "pyarrow.NativeFile", at: int, end: int) -> tuple[dict[int, int], int]:
    """Reads the header of a page; returns its integer fields by id, and its length in bytes."""
    for size in HEADERS:
        source.seek(at)
        header = _Header(source.read(min(size, end - at)))
        try:
            return header.struct(), header.at
        except EOFError:
            continue
    raise ValueError(f"the header of the page at byte {at} is cut, or too long")


class _Header:
    """Reads Thrift's compact protocol, as far as a PageHeader needs it."""

    def __init__(self, content: bytes):
        self._content = content
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Reads a struct; returns its integer fields by id.

        Raises:
          EOFError: the content ends before the struct.
        """
        if depth > DEEPEST:
            raise ValueError("the header of a page has too many levels")
        numbers: dict[int, int] = {}
        field = 0
        while byte := self._byte():
            kind = byte & 15
            field = field + (byte >> 4) if byte >> 4 else self._signed()
            if kind in NUMBERS:
                numbers[field] = self._signed()
            elif kind == BYTE:
                self.at += 1
            elif kind == TEXT:
                length = self._unsigned()
                self.at += length
            elif kind == STRUCT:
                self.struct(depth + 1)
            elif kind not in BOOLEANS:
                raise ValueError(f"the header of a page has a field of type {kind}")
        return numbers

    def _byte(self) -> int:
        if self.at >= len(self._content):
            raise EOFError
        self.at += 1
        return self._content[self.at - 1]

    def _unsigned(self) -> int:
        number = 0
        shift = 0
        while (byte := self._byte()) >= 128:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)
