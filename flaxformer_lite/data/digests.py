"""Hashes of what cached folders depend on: of code, and of the content of files.

Those of files are cached by their metadata, so that a start need not open them.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, plugin_name, to_config_dict
from flaxformer_lite.files.read import open_regular, read_object
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.storage import compressed, content_cache

FORMAT = "1"  # increase when what is hashed changes
FEW_FILES = 64  # hashes of more files are cached
BYTES_AT_ONCE = 1 << 20  # bytes read at a time
SMALL_BYTES = 1 << 22  # and hashes of more bytes; fewer are read in a moment
NO_FILE = ("abc", "builtins", "typing", "__main__")  # modules of base classes that are not hashed
SOURCES = ("data", "objectives", "text")  # what the records of rows depend on
SETTLED_SECONDS = 10  # seconds after a change in which another one might have the same timestamp


def digest_of(parts: object) -> str:
    """Hashes what a cached folder depends on, for its name."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def is_cacheable(objective: Objective) -> bool:
    """Returns whether the records of a task may be cached.

    Those of a class defined in a notebook may not, because its code can change unseen.
    """
    return all(cls.__module__ != "__main__" for cls in type(objective).__mro__)


def made_by(objective: Objective) -> list[str]:
    """Returns what the records of a row depend on besides the row: the task's fields and code."""
    digest = hashlib.sha256(_code().encode())
    for cls in type(objective).__mro__:
        package, _, place = cls.__module__.partition(".")
        is_hashed = package == registry.PACKAGE and place.partition(".")[0] in SOURCES
        if package not in NO_FILE and not is_hashed:
            digest.update(Path(inspect.getfile(cls)).read_bytes())
    return [plugin_name(objective), to_config_dict(objective).to_json(), digest.hexdigest()]


@functools.cache
def _code() -> str:
    """Hashes the files of this package that the records of a row depend on."""
    package = Path(registry.__file__).parent
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def hash_content(digest: "hashlib._Hash", file: Path, where: str) -> None:
    """Adds the content of a file to a digest, block by block.

    Raises:
      ConfigError: it cannot be read; names `where`.
    """
    with compressed.reading(file, where), open_regular(file) as stream:
        for block in iter(lambda: stream.read(BYTES_AT_ONCE), b""):
            digest.update(block)


def remembered(
    root: str, files: Sequence[Path], kinds: Sequence[str], compute: Callable[[], str]
) -> tuple[str, int]:
    """Returns the hash of files' content and their size in bytes.

    A file counts as unchanged while its size, its times of modification and of change, and its
    number in the file system are the same.

    Args:
      root: data.cache; empty: nothing is remembered.
      files: in a fixed order.
      kinds: what the hash depends on besides the content, one per file.
      compute: hashes the files.
    """
    listing = hashlib.sha256(FORMAT.encode())
    size = 0
    newest = 0.0
    for path, kind in zip(files, kinds, strict=True):
        stat = path.stat()
        size += stat.st_size
        newest = max(newest, stat.st_mtime, stat.st_ctime)
        times = stat.st_mtime_ns, stat.st_ctime_ns
        line = [os.path.abspath(path), kind, stat.st_size, *times, stat.st_ino, stat.st_dev]
        listing.update(json.dumps(line).encode())
    is_large = len(files) > FEW_FILES or size > SMALL_BYTES
    if not (root and is_large) or time.time() - newest < SETTLED_SECONDS:
        return compute(), size

    def write(folder: Path) -> None:
        (folder / "digest.json").write_text(json.dumps({"digest": compute()}))

    with contextlib.suppress(ConfigError, OSError):
        name = f"listing-{listing.hexdigest()[:16]}"
        folder = content_cache.folder(content_cache.local(root), name, write)
        return str(read_object(folder / "digest.json", {"digest": str})["digest"]), size
    return compute(), size
