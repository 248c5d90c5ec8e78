"""A cache of content-addressed folders, each written once.

A folder is complete or absent, even if processes race or are killed.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.publish import private_directory
from flaxformer_lite.files.read import read_object
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage.stores import is_url

MANIFEST = "complete.json"
BLOCK_BYTES = 1 << 24  # bytes per checksum
CHECKED_BLOCKS = 16  # blocks of a folder that are verified at each use: up to 256 MB


class NotWritable(ConfigError):
    """The folder of the cache is not writable."""


def local(root: str | Path) -> Path:
    """Returns the local folder of a cache; that of an address is FLAXFORMER_LITE_CACHE."""
    default = os.environ.get("FLAXFORMER_LITE_CACHE") or DataConfig.cache
    if is_url(default):
        raise ConfigError(
            f"FLAXFORMER_LITE_CACHE={default}: must be a local folder; set data.cache to the store."
        )
    return expand_home(default if "://" in str(root) else root)


def folder(root: str | Path, name: str, write: Callable[[Path], None]) -> Path:
    """Returns the folder `root/name`, which `write` fills if it is missing or incomplete.

    One of the processes that share a disk writes the folder while the others wait; on a file system
    without locks all of them write it, and the first to finish wins. What a killed process has
    written is removed by the next writer. Each use checks the sizes of all files, and the checksums
    of CHECKED_BLOCKS random blocks, which in most runs are all blocks.

    Args:
      root: data.cache; `~` is the home folder.
      name: contains the hash of everything that the content depends on.
      write: fills the empty folder that it is given; exceptions other than OSError propagate.

    Raises:
      ConfigError: `root` is an address in a store.
      NotWritable: `root` is not writable.
    """
    final = find_place(root, name)
    if not is_complete(final):
        with _explained(root, final):
            final.parent.mkdir(parents=True, exist_ok=True)
            with _alone(_lock_of(final), waits=True):
                _fill(final, write)
    return final


def claim(root: str | Path, name: str, write: Callable[[Path], None]) -> bool:
    """Fills the folder `root/name` as `folder` does, unless another process is writing it now.

    So processes that share a disk divide the writing of several folders among them.

    Returns:
      Whether the folder is complete; False if another process writes it.
    """
    final = find_place(root, name)
    if is_complete(final):
        return True
    with _explained(root, final):
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _alone(_lock_of(final), waits=False):
                _fill(final, write)
        except _Taken:
            return False
    return True


def find_place(root: str | Path, name: str) -> Path:
    """Returns where a folder of the cache is, or will be.

    Raises:
      ConfigError: `root` is an address in a store.
    """
    if is_url(root):
        raise ConfigError(
            f"data.cache={str(root)!r}: must be a folder; mount the bucket (gcsfuse, Mountpoint for"
            " Amazon S3), or let each host keep its own, --config.data.cache=FOLDER."
        )
    return local(root) / name


def is_complete(path: Path) -> bool:
    """Returns whether files have their sizes, and CHECKED_BLOCKS random blocks their checksums."""
    try:
        blocks = []
        for name, (size, checksums) in read_object(path / MANIFEST).items():
            if (path / name).stat().st_size != size:
                return False
            for number, checksum in enumerate(checksums):
                blocks.append((name, number, checksum))
        for name, number, checksum in random.sample(blocks, min(CHECKED_BLOCKS, len(blocks))):
            if _checksum(path / name, number) != checksum:
                return False
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    return True


class _Taken(Exception):
    """Another process has the lock of a folder."""


@contextlib.contextmanager
def _explained(root: str | Path, final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Without locks, another process may have finished.
        if is_complete(final):
            return
        raise NotWritable(
            f"data.cache={str(local(root))!r}: cannot write there ({error.strerror or error}); free"
            " some space, or name another folder, --config.data.cache=FOLDER."
        ) from error


def _lock_of(final: Path) -> Path:
    return final.with_name(f"{final.name}.lock")


def _fill(final: Path, write: Callable[[Path], None]) -> None:
    """Writes a folder whose lock this process has, and publishes it whole."""
    if is_complete(final):
        return
    with private_directory(final, alone=False) as temporary:
        write(temporary)
        files = {}
        for path in temporary.rglob("*"):
            if path.is_file():
                files[str(path.relative_to(temporary))] = _checksums(path)
        (temporary / MANIFEST).write_text(json.dumps(files))
        _publish(temporary, final)


@contextlib.contextmanager
def _alone(path: Path, *, waits: bool) -> Iterator[None]:
    """Locks out other processes; the system releases the lock if this one is killed.

    Raises:
      _Taken: another process has the lock, and this one does not wait for it.
    """
    with open(path, "w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    raise _Taken from None
                with progress.working(f"waiting for another process to write {path.stem}"):
                    fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _publish(temporary: Path, final: Path) -> None:
    """Renames into place; if another process was faster, its folder stays."""
    if final.exists() and not is_complete(final):
        print(f"{final}: incomplete or damaged, written again.", file=sys.stderr)
        damaged = final.rename(temporary.with_name(temporary.name + ".damaged"))
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        temporary.rename(final)
    except OSError:
        if not is_complete(final):
            raise


def _checksums(path: Path) -> tuple[int, list[int]]:
    """Returns the size of a file in bytes, and the CRC-32 of each of its blocks."""
    size = path.stat().st_size
    return size, [_checksum(path, number) for number in range(-(-size // BLOCK_BYTES))]


def _checksum(path: Path, number: int) -> int:
    with path.open("rb") as file:
        file.seek(number * BLOCK_BYTES)
        return zlib.crc32(file.read(BLOCK_BYTES))
