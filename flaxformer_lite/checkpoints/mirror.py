"""A local copy of the workdir of a run in an object store: all its files but the checkpoints, which
stay where they are."""

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from flaxformer_lite.storage.kvstore import retried
from flaxformer_lite.storage.lock import Lock, LockError
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError, is_url, name_copy, retries

# What a start, or a reader, needs of the earlier ones: names, or their beginnings. Whatever else
# lies there is not copied.
KEPT = (
    "baseline.json",
    "breakdown.json",
    "config.json",
    "metrics.jsonl",
    "reference.npz",
    "samples.jsonl",
    "tokenizer/",
    "tracker-",
    "wandb-id.txt",
)
_read: list[tempfile.TemporaryDirectory] = []  # copies for reading, which go when the process ends


def place_of(workdir: str | Path) -> Path:
    """Returns a path, or something like one for an address, to which names can be appended by
    `/`."""
    return epath.Path(workdir) if is_url(workdir) else Path(workdir)


def fetch(url: str, folder: Path) -> None:
    """Copies the files of a run that are read again to a folder."""
    objects = Objects(url)
    for name in [
        name for kept in KEPT for name in (objects.names(kept) if kept[-1] in "-/" else [kept])
    ]:
        folders = name.split("/")[:-1]
        # consoles write a name with a slash for a new folder
        is_file = not name.endswith("/") and ".." not in folders
        if is_file and (content := objects.read(name)) is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    name_copy(folder, str(objects))


def fetched(url: str) -> Path:
    """Copies the run at an address to a folder of its name that lasts as long as this process, and
    returns it."""
    _read.append(tempfile.TemporaryDirectory(prefix="flaxformer_lite-"))
    folder = Path(_read[-1].name, place_of(url).name)
    folder.mkdir()
    fetch(url, folder)
    return folder


class Mirror:
    """The workdir of a run that writes; on a disk, the workdir itself.

    Args:
      place: the workdir.
      folder: an empty folder for that of a store, which gets what earlier starts of the run have
        sent.
      lock: what process 0 must hold to send; the others send what they alone write, such as their
        profile.

    Attributes:
      place: the workdir.
      folder: where files are written and read.
    """

    def __init__(self, place: Path, folder: Path | None = None, lock: Lock | None = None):
        self.place = place
        self.folder = folder or place
        self._lock = lock
        self._one = threading.Lock()
        self._objects = Objects(str(place)) if folder else None
        if folder:
            fetch(str(place), folder)
            self._sent = self._states()

    def send(self) -> None:
        """Sends the files that have changed since the last call.

        Raises:
          LockError: another run has taken the lock over.
          StorageError: the store cannot be used.
        """
        if self._objects is None:
            return
        with self._one:
            if self._lock is not None:
                self._lock.check(ask=True)
            states = self._states()
            changed = [name for name, state in states.items() if self._sent.get(name) != state]
            self._objects.write_all({name: (self.folder / name).read_bytes() for name in changed})
            self._sent |= {name: states[name] for name in changed}

    def _states(self) -> dict[str, tuple[int, int]]:
        """Maps the name of each file to what tells that it has changed."""
        found: dict[str, tuple[int, int]] = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if not any(part.startswith(".") for part in name.parts):
                with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                    state = path.stat()
                    found |= (
                        {name.as_posix(): (state.st_size, state.st_mtime_ns)}
                        if path.is_file()
                        else {}
                    )
        return found


@contextlib.contextmanager
def mirrored(place: Path, lock: Lock | None, *, writes: bool) -> Iterator[Mirror]:
    """Keeps the files of a workdir in a folder within the block, and sends them at its end, also
    after an error.

    Args:
      place: the workdir; one on a disk is its own folder.
      lock: its lock.
      writes: whether this process is the one that speaks for all.
    """
    if not is_url(place):
        yield Mirror(place)
        return
    with tempfile.TemporaryDirectory(prefix="flaxformer_lite-") as made:
        folder = Path(made, place.name)  # by its name trackers and pages know the run
        before = retried() + retries()
        folder.mkdir()
        mirror = Mirror(place, folder, lock)
        try:
            yield mirror
        except BaseException:
            with contextlib.suppress(StorageError, LockError):
                mirror.send()
            raise
        else:
            mirror.send()
        finally:
            if writes and (times := retried() + retries() - before):
                print(f"notice: storage: {times} requests were tried again.", file=sys.stderr)
