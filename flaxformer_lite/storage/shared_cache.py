"""The entries of a cache in a store, which hosts share: each is made by one host, and complete once
its manifest is there."""

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
        """Returns whether it is complete."""
        return remote.find(self._manifest) is not None

    def fetch(self, folder: Path, checksums: Callable[[Path], object]) -> bool:
        """Copies the files to a folder; returns False, with an empty one, where they are not there
        or not whole."""
        if (manifest := remote.find(self._manifest)) is None:
            return False
        try:
            files = parse_object(remote.read(manifest), self._manifest)
            found = {str(file)[len(self.url) + 1 :]: file for file in remote.find_below(self.url)}
            with progress.reading(
                f"fetching {self.url}", sum(file.size for file in found.values())
            ) as advance:
                for name, expected in files.items():
                    if ".." in Path(name).parts:
                        raise ValueError("a name with '..'")
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    remote.download(found[name], path)
                    if list(checksums(path)) != expected:  # type: ignore[call-overload]  # a pair
                        raise ValueError(f"{name} is not what was written")
                    advance(found[name].size)
        except (KeyError, ValueError) as error:
            if isinstance(error, StorageError) and "damaged" not in str(error):
                raise
            print(
                f"notice: {self.url}: incomplete or damaged ({error}), made again.", file=sys.stderr
            )
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            return False
        return True

    def send(self, folder: Path) -> None:
        """Copies the files of a folder there, the manifest last."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        with progress.reading(
            f"sending {self.url}", sum(path.stat().st_size for path in files)
        ) as advance:
            for path in sorted(
                files, key=lambda path: f"{self.url}/{path.relative_to(folder)}" == self._manifest
            ):
                remote.upload(path, f"{self.url}/{path.relative_to(folder).as_posix()}")
                advance(path.stat().st_size)

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Waits until the entry is complete, which yields False, or nobody else makes it, which
        yields True."""
        lock = Lock(Objects(self.url), secrets.token_hex(8))
        told = False
        with contextlib.ExitStack() as held, contextlib.ExitStack() as waiting:
            while not self.exists():
                try:
                    held.enter_context(lock)
                    break
                except LockError:  # its owner lives
                    if not told:
                        waiting.enter_context(
                            progress.working(f"waiting for another process to make {self.url}")
                        )
                    told = True
            waiting.close()
            yield not self.exists()  # another host may have completed it since the last look
