"""Entries of a cache in a store, each written by one of the hosts that share it.

An entry is complete once its manifest exists.
"""

import contextlib
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from flaxformer_lite.files.read import parse_object
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import remote
from flaxformer_lite.storage.lock import Lock, LockError
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError


class Entry:
    """A folder of the cache in a store.

    Args:
      url: its address.
      manifest: the name of the file that lists the others with their checksums, and is written
        last.
    """

    def __init__(self, url: str, manifest: str):
        self.url = url
        self._manifest = f"{url}/{manifest}"

    def exists(self) -> bool:
        """Returns whether the entry is complete."""
        return remote.find(self._manifest) is not None

    def fetch(self, folder: Path, checksums: Callable[[Path], Iterable[object]]) -> bool:
        """Copies the files of the entry to an empty folder.

        Args:
          folder: the folder to fill.
          checksums: computes (size, checksums of blocks) of a file, as in the manifest.

        Returns:
          Whether the entry is complete and undamaged; if not, the folder is left empty.
        """
        manifest = remote.find(self._manifest)
        if manifest is None:
            return False
        stored = remote.map_below(self.url)
        try:
            expected = parse_object(remote.read(manifest), self._manifest)
            remote.download_all({name: stored[name] for name in expected}, folder, self.url)
            for name in expected:
                if list(checksums(folder / name)) != expected[name]:
                    raise ValueError(f"{name} is not what was written")
        except StorageError:
            raise
        except (KeyError, ValueError) as error:
            problem = f"incomplete or damaged ({error}), written again."
            print(f"notice: {self.url}: {problem}", file=sys.stderr)
            shutil.rmtree(folder)
            folder.mkdir()
            return False
        return True

    def send(self, folder: Path) -> None:
        """Copies the files of a folder to the entry, the manifest last."""
        last = self._manifest.rpartition("/")[2]
        remote.upload_all(folder, self.url, lambda name: (name == last, name))

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Waits until the entry is complete, or until no other host writes it.

        Yields:
          Whether this host must write the entry.
        """
        lock = Lock(Objects(self.url), secrets.token_hex(8))
        is_waiting = False
        with contextlib.ExitStack() as held, contextlib.ExitStack() as spinner:
            while not self.exists():
                try:
                    held.enter_context(lock)
                    break
                except LockError:  # its owner is alive
                    if not is_waiting:
                        what = f"waiting for another process to write {self.url}"
                        spinner.enter_context(progress.working(what))
                    is_waiting = True
            spinner.close()
            yield not self.exists()  # another host may have completed it just now
