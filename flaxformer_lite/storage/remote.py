"""Lists, reads and copies objects in stores, such as `gs://bucket/name`."""

import concurrent.futures
import contextlib
import fnmatch
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from flaxformer_lite.storage.stores import StorageError, no_bucket, request

if TYPE_CHECKING:  # imported with the first address
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

BLOCK = 1 << 23  # bytes per request
STREAMS = 8  # concurrent requests of a copy
PARTS = 9000  # maximum number of parts of an upload; the stores allow 10,000


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
        return io.BufferedReader(_Ranges(self), BLOCK)


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
    import obstore

    def head(store: "ObjectStore", name: str) -> RemoteFile | None:
        if not name.strip("/"):  # the address of a bucket
            return None
        return _file(url, obstore.head(store, name))

    with contextlib.suppress(FileNotFoundError):
        return request(url, head)
    return None


def find_below(url: str) -> list[RemoteFile]:
    """Lists all objects whose addresses begin with `url/`, sorted by address."""
    return find_prefix(f"{url.rstrip('/')}/")


def find_prefix(url: str) -> list[RemoteFile]:
    """Lists all objects whose addresses begin with a prefix, sorted by address."""
    import obstore

    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.partition("/")
    folder = prefix.rpartition("/")[0]

    def entries(store: "ObjectStore", _: str) -> list["ObjectMeta"]:
        # obstore lists whole folders, sorted by name: begin just before the prefix, and end after.
        offset = None if prefix in ("", f"{folder}/") else prefix[:-1]
        matching = []
        for page in obstore.list(store, folder or None, offset=offset):
            for entry in page:
                if entry["path"].startswith(prefix):
                    matching.append(entry)
                elif entry["path"] > prefix:
                    return matching
        return matching

    try:
        listed = request(url.rstrip("/"), entries)
    except FileNotFoundError:
        raise no_bucket(url) from None
    files = [_file(f"{scheme}://{bucket}/{entry['path']}", entry) for entry in listed]
    return sorted((file for file in files if file.size or find(file.url)), key=str)


def find_like(pattern: str) -> list[RemoteFile]:
    """Lists the objects that match a pattern such as `gs://bucket/*.txt`, sorted by address."""
    parts = pattern.split("/")
    plain = next(number for number, part in enumerate(parts) if re.search(r"[*?[]", part))
    below = find_below("/".join(parts[:plain]))
    return [file for file in below if _is_like(file.url.split("/")[plain:], parts[plain:])]


def content(url: str) -> bytes | None:
    """Reads an object; None if it does not exist."""
    import obstore

    with contextlib.suppress(FileNotFoundError):
        return request(url, lambda store, name: bytes(obstore.get(store, name).bytes()))
    return None


def read(file: RemoteFile, begin: int = 0, end: int | None = None) -> bytes:
    """Reads the bytes from `begin` to `end`, or to the end of the object if that comes first.

    Raises:
      StorageError: the object was replaced since it was listed, or the store cannot be used.
    """
    import obstore
    from obstore.exceptions import PreconditionError

    end = file.size if end is None else min(end, file.size)
    if begin >= end:
        return b""
    options: GetOptions = {"range": (begin, end)}
    if file.version:
        options["if_match"] = f'"{file.version.removeprefix("md5:")}"'

    def get(store: "ObjectStore", name: str) -> bytes:
        data = bytes(obstore.get(store, name, options=options).bytes())
        if len(data) != end - begin:
            raise ConnectionError(f"{len(data)} of {end - begin} bytes")
        return data

    try:
        return request(file.url, get)
    except FileNotFoundError:
        raise missing(file.url) from None
    except PreconditionError:
        raise StorageError(
            f"{file}: was replaced while it was read; start again when nothing writes it."
        ) from None


def write(url: str, data: bytes) -> None:
    """Writes an object, which appears complete or not at all."""
    _send(url, len(data), lambda: io.BytesIO(data))


def delete(url: str) -> None:
    """Deletes an object if it exists."""
    import obstore

    with contextlib.suppress(FileNotFoundError):
        request(url, lambda store, name: obstore.delete(store, name))


def upload(path: Path, url: str) -> None:
    """Copies a local file to an object, which appears complete or not at all."""
    _send(url, path.stat().st_size, lambda: path.open("rb"))


def download(file: RemoteFile, path: Path) -> None:
    """Copies an object to a new local file; blocks are written in any order."""

    def copy(begin: int) -> None:
        os.pwrite(out.fileno(), read(file, begin, begin + BLOCK), begin)

    with path.open("wb") as out, concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        blocks = [pool.submit(copy, begin) for begin in range(0, file.size, BLOCK)]
        try:
            for block in blocks:
                block.result()
        finally:
            pool.shutdown(cancel_futures=True)


def missing(url: str) -> StorageError:
    """Builds the error for an object or bucket that does not exist."""
    import obstore

    try:
        with contextlib.suppress(StorageError):  # permission to read may not include listing
            request(url, lambda store, name: next(iter(obstore.list(store, name)), None))
    except FileNotFoundError:
        return no_bucket(url)
    return StorageError(
        f"{url}: the bucket has no object of this name, and none below it; check the name."
    )


def _send(url: str, size: int, read: Callable[[], BinaryIO]) -> None:
    """Writes the content of a file in one request, or as a multipart upload if it is large."""
    import obstore

    def put(store: "ObjectStore", name: str) -> None:
        with read() as file:
            obstore.put(store, name, file.read(), use_multipart=False)

    def put_parts(store: "ObjectStore", name: str) -> None:
        block = max(BLOCK, size // PARTS + 1)
        # Not a with statement, which would complete the object even after an error.
        out = obstore.open_writer(store, name, buffer_size=block, max_concurrency=STREAMS)
        with read() as file:
            while piece := file.read(block):
                out.write(piece)
        out.close()

    several = size > BLOCK
    try:
        request(url, put_parts if several else put, retried_inside=several)
    except FileNotFoundError:
        raise no_bucket(url) from None


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
