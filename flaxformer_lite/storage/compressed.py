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
LARGEST = 1 << 28  # bytes that a file unpacks to, where all of it must be in memory
File = Path | RemoteFile
Stream = io.BufferedReader | gzip.GzipFile
INSTALL = "reading it needs pyarrow: pip install 'flaxformer_lite[tables]'"


def kind(path: File) -> str:
    """Returns the suffix of a file, without that of compression."""
    name = path.name.lower()
    return Path(name.removesuffix(compression(path))).suffix


def compression(path: File) -> str:
    """Returns ".gz", ".zst" or "", by the name of a file."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


@contextlib.contextmanager
def reading(path: File, where: str) -> Iterator[None]:
    """Turns the errors of reading a compressed file into a ConfigError that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{where}: {path.name} cannot be read ({error}).") from error


def unpacked(path: File, where: str) -> Stream:
    """Opens a file and decompresses it by its name.

    Raises:
      ConfigError: pyarrow is needed and not installed. Reading a damaged stream raises what
        `reading` turns into a sentence.
    """
    packed = path if isinstance(path, Path) else path.open("rb")
    if compression(path) == ".zst":
        return io.BufferedReader(_zstd(path, where, packed))
    if compression(path) == ".gz":
        return gzip.open(packed)
    return packed.open("rb") if isinstance(packed, Path) else packed


def read_unpacked(path: File, where: str) -> bytes:
    """Reads and decompresses all of a file.

    Raises:
      ConfigError: it has more than LARGEST bytes, or is damaged.
    """
    with reading(path, where), unpacked(path, where) as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ConfigError(
            f"{where}: {path.name} unpacks to more than {LARGEST >> 20} MiB, which would have to be"
            " in memory; unpack it first (gunzip, or zstd -d)."
        )
    return content


def _zstd(path: File, where: str, packed: Path | Stream) -> "pyarrow.CompressedInputStream":
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(f"{where}: {path.name}: {INSTALL}.") from None
    return pyarrow.CompressedInputStream(
        str(packed) if isinstance(packed, Path) else packed, "zstd"
    )
