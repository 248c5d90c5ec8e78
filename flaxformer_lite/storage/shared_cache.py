"""Entries of a cache in a store, each written by one of the hosts that share it.

An entry is complete once its manifest exists.
"""

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
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

    def fetch(self, folder: Path, checksums: Callable[[Path], object]) -> bool:
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
        try:
            files = parse_object(remote.read(manifest), self._manifest)
            stored = {str(file)[len(self.url) + 1 :]: file for file in remote.find_below(self.url)}
            total = sum(file.size for file in stored.values())
            with progress.reading(f"fetching {self.url}", total) as advance:
                for name, expected in files.items():
                    if ".." in Path(name).parts:
                        raise ValueError("a name with '..'")
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    remote.download(stored[name], path)
                    if list(checksums(path)) != expected:  # type: ignore[call-overload]  # a pair
                        raise ValueError(f"{name} is not what was written")
                    advance(stored[name].size)
        except (KeyError, ValueError) as error:
            if isinstance(error, StorageError) and "damaged" not in str(error):
                raise
            problem = f"incomplete or damaged ({error}), written again."
            print(f"notice: {self.url}: {problem}", file=sys.stderr)
            for path in sorted(folder.rglob("*"), reverse=True):
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink()
            return False
        return True

    def send(self, folder: Path) -> None:
        """Copies the files of a folder to the entry, the manifest last."""
        files = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files[f"{self.url}/{path.relative_to(folder).as_posix()}"] = path
        total = sum(path.stat().st_size for path in files.values())
        with progress.reading(f"sending {self.url}", total) as advance:
            for url in sorted(files, key=lambda url: url == self._manifest):
                remote.upload(files[url], url)
                advance(files[url].stat().st_size)

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
