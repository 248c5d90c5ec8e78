"""Lists, reads and copies objects in stores, such as `gs://bucket/name`."""

import concurrent.futures
import contextlib
import fnmatch
import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flaxformer_lite.runtime import progress
from flaxformer_lite.storage.stores import StorageError, import_obstore, no_bucket, open_bucket

if TYPE_CHECKING:  # imported with the first address
    from obstore import GetOptions, ObjectMeta
    from typing_extensions import Buffer

REQUEST_BYTES = 1 << 23  # bytes per request
CONCURRENT_REQUESTS = 8  # concurrent requests of a copy
MAX_UPLOAD_PARTS = 9000  # maximum number of parts of an upload; the stores allow 10,000


@dataclass(frozen=True)
class RemoteFile:
    """An object of a store that is read like a file.

    Attributes:
      url: its address.
      size: its size in bytes.
      version: the entity tag of the store, which changes with the content.
    """

    url: str
    size: int
    version: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Opens a seekable stream of bytes."""
        return io.BufferedReader(_Ranges(self), REQUEST_BYTES)


class _Ranges(io.RawIOBase):
    def __init__(self, file: RemoteFile):
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def readinto(self, buffer: "Buffer") -> int:
        room = memoryview(buffer)
        data = read(self._file, self._at, self._at + len(room))
        room[: len(data)] = data
        self._at += len(data)
        return len(data)


def find(url: str) -> RemoteFile | None:
    """Returns the object of exactly this address, or None."""
    obstore = import_obstore()
    with contextlib.suppress(FileNotFoundError), open_bucket(url) as (client, name):
        if name.strip("/"):  # else the address of a bucket
            return _file(url, obstore.head(client, name))
    return None


def find_below(url: str) -> list[RemoteFile]:
    """Lists all objects whose addresses begin with `url/`, sorted by address."""
    obstore = import_obstore()
    url = url.rstrip("/")
    files = []
    try:
        with open_bucket(url) as (client, folder):
            bucket = url.removesuffix(folder).rstrip("/")
            for page in obstore.list(client, folder or None):
                for entry in page:
                    files.append(_file(f"{bucket}/{entry['path']}", entry))
    except FileNotFoundError:
        raise no_bucket(url) from None
    # Consoles create folders as empty objects `folder/`, which obstore lists without the slash.
    below = [file for file in files if file.url.startswith(f"{url}/")]
    return sorted((file for file in below if file.size or find(file.url)), key=str)


def map_below(url: str) -> dict[str, RemoteFile]:
    """Maps the names of all objects below an address, relative to it, to the objects."""
    beginning = f"{url.rstrip('/')}/"
    return {file.url.removeprefix(beginning): file for file in find_below(url)}


def find_like(pattern: str) -> list[RemoteFile]:
    """Lists the objects that match a pattern such as `gs://bucket/*.txt`, sorted by address."""
    parts = pattern.split("/")
    plain = next(number for number, part in enumerate(parts) if re.search(r"[*?[]", part))
    below = find_below("/".join(parts[:plain]))
    return [file for file in below if _is_like(file.url.split("/")[plain:], parts[plain:])]


def read(file: RemoteFile, begin: int = 0, end: int | None = None) -> bytes:
    """Reads the bytes from `begin` to `end`, or to the end of the object if that comes first.

    Raises:
      StorageError: the object was replaced since it was listed, or the store cannot be used.
    """
    obstore = import_obstore()
    end = file.size if end is None else min(end, file.size)
    if begin >= end:
        return b""
    options: GetOptions = {"range": (begin, end)}
    if file.version:
        options["if_match"] = f'"{file.version.removeprefix("md5:")}"'
    try:
        with open_bucket(file.url) as (client, name):
            return bytes(obstore.get(client, name, options=options).bytes())
    except FileNotFoundError:
        raise missing(file.url) from None


def upload(content: Path | bytes, url: str) -> None:
    """Copies a local file or bytes to an object, which appears complete or not at all."""
    obstore = import_obstore()
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    block = max(REQUEST_BYTES, size // MAX_UPLOAD_PARTS + 1)
    try:
        with open_bucket(url) as (client, name):
            obstore.put(
                client, name, content, chunk_size=block, max_concurrency=CONCURRENT_REQUESTS
            )
    except FileNotFoundError:
        raise no_bucket(url) from None


def download(file: RemoteFile, path: Path) -> None:
    """Copies an object to a new local file; blocks are written in any order."""

    def copy(begin: int) -> None:
        os.pwrite(out.fileno(), read(file, begin, begin + REQUEST_BYTES), begin)

    with path.open("wb") as out, concurrent.futures.ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        blocks = [pool.submit(copy, begin) for begin in range(0, file.size, REQUEST_BYTES)]
        try:
            for block in blocks:
                block.result()
        finally:
            pool.shutdown(cancel_futures=True)


def download_all(files: Mapping[str, RemoteFile], folder: Path, url: str) -> None:
    """Copies objects below an address to a folder, and shows the progress.

    Args:
      files: each object by its path in the folder; the store's names have no `..`, which obstore
        refuses.
      folder: a folder on this machine.
      url: the address.
    """
    total = sum(file.size for file in files.values())
    with progress.read_progress(f"fetching {url}", total) as advance:
        for name, file in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            download(file, folder / name)
            advance(file.size)


def upload_all(folder: Path, url: str, order: Callable[[str], tuple]) -> None:
    """Copies the files of a folder to the same names below an address, and shows the progress.

    Args:
      folder: a folder on this machine.
      url: the address.
      order: the key of a name by which they are sorted, as the last one tells readers that all are
        there.
    """
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path
    total = sum(path.stat().st_size for path in files.values())
    with progress.read_progress(f"sending {url}", total) as advance:
        for name in sorted(files, key=order):
            upload(files[name], f"{url}/{name}")
            advance(files[name].stat().st_size)


def missing(url: str) -> StorageError:
    """Builds the error for an object or bucket that does not exist."""
    obstore = import_obstore()
    try:
        with open_bucket(url) as (client, name):
            next(iter(obstore.list(client, name or None)), None)
    except FileNotFoundError:
        return no_bucket(url)
    except StorageError:  # permission to read may not include listing
        pass
    return StorageError(
        f"{url}: the bucket has no object of this name, and none below it; check the name."
    )


def _is_like(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_is_like(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    if not parts or not fnmatch.fnmatchcase(parts[0], pattern[0]):
        return False
    return _is_like(parts[1:], pattern[1:])


def _file(url: str, entry: "ObjectMeta") -> RemoteFile:
    tag = (entry["e_tag"] or "").strip('"')
    is_digest = url.startswith("s3") and len(tag) == 32  # the name in fingerprints of older runs
    return RemoteFile(url, entry["size"], f"md5:{tag}" if is_digest else tag)
