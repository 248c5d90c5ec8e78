"""Reads files that may be compressed, local or in a store: `.gz` by gzip, `.zst` by pyarrow."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flaxformer_lite.config import ConfigError
from flaxformer_lite.storage.remote import RemoteFile

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = (".gz", ".zst")
MAX_UNPACKED_BYTES = 1 << 28  # most bytes of a decompressed file that must be in memory as a whole
File = Path | RemoteFile
Stream = io.BufferedReader | gzip.GzipFile
INSTALL = "reading it needs pyarrow: pip install 'flaxformer_lite[tables]'"


def kind(path: File) -> str:
    """Returns the suffix of a file, without a compression's."""
    name = path.name.lower()
    return Path(name.removesuffix(compression(path))).suffix


def size(path: File) -> int:
    """Returns the bytes of a file, as they are stored."""
    if isinstance(path, Path):
        return path.stat().st_size
    return path.size


def compression(path: File) -> str:
    """Returns ".gz", ".zst" or "", by the name of a file."""
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    return ""


@contextlib.contextmanager
def reading(path: File, where: str) -> Iterator[None]:
    """Turns the errors of reading a compressed file into a ConfigError that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{where}: {path.name} cannot be read ({error}).") from error


def unpacked(path: File, where: str) -> Stream:
    """Opens a file, and decompresses it if its name ends in one of SUFFIXES.

    Read it within `reading`, which converts the errors of a damaged stream.

    Raises:
      ConfigError: pyarrow is needed and not installed.
    """
    if compression(path) == ".zst":
        return io.BufferedReader(_zstd(path, where))
    if compression(path) == ".gz" and isinstance(path, Path):
        return gzip.open(path)
    stream = path.open("rb")
    if compression(path) == ".gz":
        return gzip.open(stream)
    return stream


def read_unpacked(path: File, where: str) -> bytes:
    """Reads and decompresses all of a file.

    Raises:
      ConfigError: it has more than MAX_UNPACKED_BYTES bytes, or is damaged.
    """
    with reading(path, where), unpacked(path, where) as stream:
        content = stream.read(MAX_UNPACKED_BYTES + 1)
    if len(content) > MAX_UNPACKED_BYTES:
        raise ConfigError(
            f"{where}: {path.name} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB, which would"
            " have to be in memory; unpack it first (gunzip, or zstd -d)."
        )
    return content


def _zstd(path: File, where: str) -> "pyarrow.CompressedInputStream":
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(f"{where}: {path.name}: {INSTALL}.") from None
    if isinstance(path, Path):
        return pyarrow.CompressedInputStream(str(path), "zstd")
    return pyarrow.CompressedInputStream(path.open("rb"), "zstd")
