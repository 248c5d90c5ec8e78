"""The objects below an address such as `gs://bucket/run`: checkpoints and the files beside them."""

import concurrent.futures
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from flaxformer_lite.storage import remote
from flaxformer_lite.storage.stores import import_obstore, is_url, open_bucket

AT_ONCE = 16  # requests at a time


class Objects:
    """The objects whose names begin with `url/`.

    All methods raise StorageError if the store cannot be used or denies access.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def below(self, name: str) -> "Objects":
        return Objects(f"{self.url}/{name}")

    def names(self) -> list[str]:
        """Lists the names of all objects, relative to the address."""
        return list(remote.map_below(self.url))

    def read(self, name: str) -> bytes | None:
        """Reads an object; None if it does not exist."""
        obstore = import_obstore()
        url = f"{self.url}/{name}"
        with contextlib.suppress(FileNotFoundError), open_bucket(url) as (client, path):
            return bytes(obstore.get(client, path).bytes())
        return None

    def write(self, name: str, content: bytes) -> None:
        """Writes an object, which appears complete or not at all."""
        remote.upload(content, f"{self.url}/{name}")

    def delete(self, name: str) -> None:
        """Deletes an object if it exists."""
        obstore = import_obstore()
        url = f"{self.url}/{name}"
        with contextlib.suppress(FileNotFoundError), open_bucket(url) as (client, path):
            obstore.delete(client, path)

    def write_all(self, contents: Mapping[str, bytes]) -> None:
        """Writes objects concurrently."""
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.write, contents, contents.values()))  # raises what failed

    def delete_all(self, names: Iterable[str] | None = None) -> None:
        """Deletes objects concurrently: the named ones, or all below the address."""
        if names is None:
            names = self.names()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.delete, names))  # raises what failed


def objects_at(place: str | Path) -> Objects | None:
    """Returns the objects at an address in a store; None for a folder on this machine."""
    if is_url(place):
        return Objects(str(place))
    return None
