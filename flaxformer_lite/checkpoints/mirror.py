"""A local copy of a workdir in an object store: all files but the checkpoints."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from flaxformer_lite.files.home import expand_home
from flaxformer_lite.storage.lock import Lock, LockError
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import ADDRESS, StorageError, is_url

# The files that a later start or a reader needs, by name or prefix; others are not copied.
KEPT = (
    "README.md",  # a card that a person changed stays
    "base.json",
    "baseline.json",
    "breakdown.json",
    "collected.jsonl",
    "config.json",
    "metrics.jsonl",
    "reference.npz",
    "samples.jsonl",
    "tokenizer/",
    "tracker-",
    "wandb-id.txt",
)
_read: list[tempfile.TemporaryDirectory] = []  # copies for reading, deleted when the process ends


def place_of(workdir: str | Path) -> Path:
    """Returns a path; for an address an epath, whose `/` appends names too."""
    return epath.Path(workdir) if is_url(workdir) else expand_home(workdir)


def fetch(url: str, folder: Path) -> None:
    """Copies the files of a run that are read again to a folder."""
    objects = Objects(url)
    for name in objects.names():
        if not name.startswith(KEPT):
            continue
        content = objects.read(name)
        if content is not None:  # deleted meanwhile
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    (folder / ADDRESS).write_text(str(objects))


def fetched(url: str) -> Path:
    """Copies the run at an address to a temporary folder, and returns it.

    Its path ends like the address, which errors about its files so name. It is deleted when the
    process ends.
    """
    _read.append(tempfile.TemporaryDirectory(prefix="flaxformer_lite-"))
    folder = Path(_read[-1].name, url.replace("://", "/"))
    folder.mkdir(parents=True)
    fetch(url, folder)
    return folder


class Mirror:
    """The local copy of the workdir of a training run; on a disk, the workdir itself.

    Args:
      place: the workdir.
      folder: for a workdir in a store, an empty folder, which is filled with what earlier starts of
        the run have sent.
      lock: the lock of the workdir, which process 0 must hold to send; other processes, which send
        their own profiles, pass None.

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
        """Sends the files that have changed since the last call to the store.

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
            # Only after they are written, so that a failed call sends them again.
            self._sent |= {name: states[name] for name in changed}

    def _states(self) -> dict[str, tuple[int, int]]:
        """Maps the name of each file to its size and modification time."""
        states: dict[str, tuple[int, int]] = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if any(part.startswith(".") for part in name.parts):
                continue
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                state = path.stat()
                if path.is_file():
                    states[name.as_posix()] = (state.st_size, state.st_mtime_ns)
        return states


@contextlib.contextmanager
def open_mirror(place: Path, lock: Lock | None) -> Iterator[Mirror]:
    """Mirrors a workdir within the block; sends the files at its end, even after an error.

    Args:
      place: the workdir; one on a disk is its own folder.
      lock: the lock of the workdir, as for `Mirror`.
    """
    if not is_url(place):
        yield Mirror(place)
        return
    with tempfile.TemporaryDirectory(prefix="flaxformer_lite-") as made:
        folder = Path(made, place.name)  # trackers and pages name the run after its folder
        folder.mkdir()
        mirror = Mirror(place, folder, lock)
        try:
            yield mirror
        # Of an interrupted run, too; errors of sending must not hide the one that ended it.
        except BaseException:
            with contextlib.suppress(StorageError, LockError):
                mirror.send()
            raise
        else:
            mirror.send()
