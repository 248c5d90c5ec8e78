"""Content-addressed folders, written once: complete or absent, even if processes race or are
killed."""

import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.files.read import read_object
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage.shared_cache import Entry
from flaxformer_lite.storage.stores import is_url

MANIFEST = "complete.json"
BLOCK = 1 << 24  # bytes per checksum
# blocks of a folder that are verified at each use: up to 256 MB, in a fraction of a second
CHECKED = 16


class NotWritable(ConfigError):
    """Nothing can be written to a cache."""


def local(root: str | Path) -> Path:
    """Returns the folder of a cache on this machine; what lies in a store is copied to
    FLAXFORMER_LITE_CACHE."""
    own = os.environ.get("FLAXFORMER_LITE_CACHE") or DataConfig.cache
    if is_url(own):
        raise ConfigError(
            f"FLAXFORMER_LITE_CACHE={own}: must be a local folder; set data.cache to the store."
        )
    return Path(own if is_url(root) else root).expanduser()


def parts_of(folder: Path) -> Path:
    """Returns the folder for what `write` makes on its way, which outlives a kill, and is removed
    once the folder that it fills is there."""
    return folder.with_name(f"{folder.name.split('.')[0]}.parts")


def folder(root: str | Path, name: str, write: Callable[[Path], None]) -> Path:
    """Returns the folder `root/name`, written by `write` if it is missing or incomplete.

    A root in a store is shared by hosts without a disk in common: each copies the folder from there
      to its own disk, and
    the first, which finds none, makes it while the others wait.

    A killed process leaves nothing half-written. One of the processes that share a disk writes it
    while the others wait; on a file system without locks all of them write it, and the first to
    finish wins. At each later use the sizes of all files are checked, and the checksums of CHECKED
    random blocks, which for the texts of most runs are all.

    Args:
      root: data.cache; `~` is the home folder.
      name: contains the hash of everything that the content depends on.
      write: fills the empty folder that it is given; exceptions other than OSError pass through.

    Raises:
      NotWritable: `root` is not writable.
    """
    if is_url(root):
        return _shared(f"{str(root).rstrip('/')}/{name}", local(root), name, write)
    root = local(root)
    final = root / name
    if _whole(final):
        return final
    temporary = root / f"{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root / f"{name}.lock"):
            if not _whole(final):
                temporary.mkdir()
                write(temporary)
                files = {
                    str(p.relative_to(temporary)): _checksums(p)
                    for p in temporary.rglob("*")
                    if p.is_file()
                }
                (temporary / MANIFEST).write_text(json.dumps(files))
                _publish(temporary, final)
            shutil.rmtree(parts_of(temporary), ignore_errors=True)
    except ChildProcessError:
        raise
    except OSError as error:
        if _whole(
            final
        ):  # another process made it, where there are no locks, and removed the parts
            return final
        raise NotWritable(
            f"data.cache={str(root)!r}: cannot write there ({error.strerror or error}); free some"
            " space, or name another folder, --config.data.cache=FOLDER."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _shared(url: str, root: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Returns a folder's copy on this machine, from the store if it is there, else made and sent
    there."""
    if _whole(root / name):
        return root / name
    entry = Entry(url, MANIFEST)
    made = False

    def fill(folder: Path) -> None:
        nonlocal made
        made = not entry.fetch(folder, _checksums)
        if made:
            write(folder)

    with entry.turn() as mine:
        final = folder(root, name, fill)
        if made or (mine and not entry.exists()):
            entry.send(final)
    return final


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Locks out other processes; the system releases the lock if this one is killed."""
    with open(path, "w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with progress.working(f"waiting for another process to make {path.stem}"):
                    fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _publish(temporary: Path, final: Path) -> None:
    """Renames into place; if another process was faster, its folder stays."""
    if final.exists() and not _whole(final):
        print(f"{final}: incomplete or damaged, written again.", file=sys.stderr)
        damaged = final.rename(temporary.with_name(temporary.name + ".damaged"))
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        temporary.rename(final)
    except OSError:
        if not _whole(final):
            raise


def _whole(path: Path) -> bool:
    try:
        files = read_object(path / MANIFEST)
        sizes_fit = all((path / name).stat().st_size == size for name, (size, _) in files.items())
        blocks = [
            (name, number, crc)
            for name, (_, crcs) in files.items()
            for number, crc in enumerate(crcs)
        ]
        drawn = random.sample(blocks, min(CHECKED, len(blocks)))
        return sizes_fit and all(
            _checksum(path / name, number) == crc for name, number, crc in drawn
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _checksums(path: Path) -> tuple[int, list[int]]:
    size = path.stat().st_size
    return size, [_checksum(path, number) for number in range(-(-size // BLOCK))]


def _checksum(path: Path, number: int) -> int:
    with path.open("rb") as file:
        file.seek(number * BLOCK)
        return zlib.crc32(file.read(BLOCK))
