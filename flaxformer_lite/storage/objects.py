"""The objects below an address such as `gs://bucket/run`: checkpoints and the files beside them."""

import concurrent.futures
from collections.abc import Mapping

from flaxformer_lite.storage import remote

AT_ONCE = 16  # requests at a time


class Objects:
    """The objects whose names begin with `url/`.

    All methods raise StorageError if the store cannot be reached or denies access.
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

    def read(self, name: str) -> bytes | None:
        """Reads an object; None if it does not exist."""
        return remote.content(f"{self.url}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Writes an object, which appears complete or not at all."""
        remote.write(f"{self.url}/{name}", content)

    def write_all(self, contents: Mapping[str, bytes | None]) -> None:
        """Writes objects concurrently; deletes those whose content is None."""

        def change(name: str) -> None:
            content = contents[name]
            if content is None:
                remote.delete(f"{self.url}/{name}")
            else:
                self.write(name, content)

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(change, name) for name in contents]:
                done.result()

    def names(self, prefix: str = "") -> list[str]:
        """Lists the names that begin with a prefix, relative to the address."""
        begin = len(self.url) + 1
        return [str(file)[begin:] for file in remote.find_prefix(f"{self.url}/{prefix}")]

    def delete(self, prefix: str = "") -> None:
        """Deletes all objects whose names begin with a prefix."""
        self.write_all(dict.fromkeys(self.names(prefix)))
