"""Folders that are made once, by content: complete or absent, whoever is killed and whoever else is making the same."""

import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import progress

MANIFEST = "complete.json"
BLOCK = 1 << 24  # bytes under one checksum
PATIENCE = 2.0  # seconds of waiting for another process after which it is said
CHECKED = 16  # blocks of a folder that are read again at each use: up to 256 MB, in a fraction of a second


def folder(root: str | Path, name: str, write: Callable[[Path], None]) -> Path:
    """The folder `root/name`, made by `write` if it is not there or not whole.

    It is written under another name and renamed when complete, so that a killed process leaves nothing half-made. Of the
    processes that share a disk one makes it, and the others wait for it; where the file system knows no locks all make
    it, and the first to finish wins. At each later use the sizes of all files are checked, and the checksums of CHECKED
    blocks drawn by lot: all there are, of the texts that most runs train on.

    Args:
      root: data.cache; `~` is the home folder.
      name: carries the hash of everything the content depends on.
      write: fills the empty folder it is given; whatever else it raises than OSError passes through.

    Raises:
      ConfigError: `root` cannot be written.
    """
    root = Path(root).expanduser()
    final = root / name
    if _whole(final):
        return final
    temporary = root / f"{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root / f"{name}.lock"):
            if _whole(final):
                return final
            temporary.mkdir()
            write(temporary)
            files = {str(p.relative_to(temporary)): _checksums(p) for p in temporary.rglob("*") if p.is_file()}
            (temporary / MANIFEST).write_text(json.dumps(files))
            _publish(temporary, final)
    except OSError as error:
        raise ConfigError(
            f"data.cache={str(root)!r}: cannot write there ({error.strerror or error}); free some space"
            f" or name another folder, --config.data.cache=FOLDER."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the system ends the lock of a process that is killed."""
    with open(path, "w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            if not _locked_within(PATIENCE, lock):
                with progress.working(f"waiting for another process to make {path.stem}"):
                    fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked_within(seconds: float, lock: IO) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def _publish(temporary: Path, final: Path) -> None:
    """Renames into place; where another process was faster, its folder stays."""
    if final.exists() and not _whole(final):
        print(f"{final}: incomplete or damaged, made again.", file=sys.stderr)
        damaged = temporary.with_name(temporary.name + ".damaged")
        final.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        temporary.rename(final)
    except OSError:
        if not _whole(final):
            raise


def _whole(path: Path) -> bool:
    try:
        files = json.loads((path / MANIFEST).read_text())
        sizes_fit = all((path / name).stat().st_size == size for name, (size, _) in files.items())
        blocks = [(name, number, crc) for name, (_, crcs) in files.items() for number, crc in enumerate(crcs)]
        drawn = random.sample(blocks, min(CHECKED, len(blocks)))
        return sizes_fit and all(_checksum(path / name, number) == crc for name, number, crc in drawn)
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _checksums(path: Path) -> tuple[int, list[int]]:
    size = path.stat().st_size
    return size, [_checksum(path, number) for number in range(-(-size // BLOCK))]


def _checksum(path: Path, number: int) -> int:
    with path.open("rb") as file:
        file.seek(number * BLOCK)
        return zlib.crc32(file.read(BLOCK))
