"""Files that may be compressed, as streams of bytes: `.gz` by the standard library, `.zst` by pyarrow."""

import gzip
import io
from pathlib import Path
from typing import Any

from flaxformer_lite.config import ConfigError

SUFFIXES = (".gz", ".zst")
INSTALL = "reading it needs pyarrow: pip install 'flaxformer_lite[tables]'"


def kind(path: Path) -> str:
    """Returns a file's suffix, not counting that of compression."""
    name = path.name.lower()
    return Path(name.removesuffix(compression(path))).suffix


def compression(path: Path) -> str:
    """Returns the suffix of compression, or ""."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def unpacked(path: Path, where: str, content: bytes | None = None) -> Any:
    """Opens a file, or what was read of it, and decompresses it by its name.

    Raises:
      ConfigError: pyarrow is needed and not installed. Reading a damaged stream raises OSError, EOFError or zlib.error.
    """
    if compression(path) == ".zst":
        return io.BufferedReader(_zstd(path, where, content))
    if compression(path) == ".gz":
        return gzip.open(path if content is None else io.BytesIO(content))
    return path.open("rb") if content is None else io.BytesIO(content)


def _zstd(path: Path, where: str, content: bytes | None) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(f"{where}: {path.name}: {INSTALL}.") from None
    return pyarrow.CompressedInputStream(str(path) if content is None else pyarrow.BufferReader(content), "zstd")
