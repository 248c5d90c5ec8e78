"""Objects in stores, such as `gs://bucket/name`: listed, read in ranges, and copied."""

import concurrent.futures
import contextlib
import fnmatch
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flaxformer_lite.storage.stores import StorageError, no_bucket, request

BLOCK = 1 << 23  # bytes of a request
STREAMS = 8  # requests of a copy at a time
PARTS = 9000  # of an upload; the stores allow 10,000


@dataclass(frozen=True)
class RemoteFile:
    """An object that is read like a file.

    Attributes:
      url: its address.
      size: bytes.
      version: changes with the content; the store's entity tag.
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
        """Opens a stream of bytes that can seek."""
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

    def readinto(self, buffer: Any) -> int:
        found = read(self._file, self._at, self._at + len(buffer))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def find(url: str) -> RemoteFile | None:
    """Finds the object of exactly this name."""
    import obstore

    def head(store: Any, name: str) -> RemoteFile | None:
        return _file(url, obstore.head(store, name)) if name.strip("/") else None  # not a bucket

    with contextlib.suppress(FileNotFoundError):
        return request(url, head)
    return None


def find_below(url: str) -> list[RemoteFile]:
    """Lists all objects whose names begin with `url/`, in the order of their names."""
    return find_prefix(f"{url.rstrip('/')}/")


def find_prefix(url: str) -> list[RemoteFile]:
    """Lists all objects whose addresses begin like this, in the order of their names."""
    import obstore

    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.partition("/")
    folder = prefix.rpartition("/")[0]

    def entries(store: Any, _: str) -> list[Any]:
        # obstore lists folders; the names that the prefix begins with are behind all shorter ones
        offset = None if prefix in ("", f"{folder}/") else prefix[:-1]
        found = []
        for page in obstore.list(store, folder or None, offset=offset):
            for entry in page:
                if entry["path"].startswith(prefix):
                    found.append(entry)
                elif entry["path"] > prefix:
                    return found
        return found

    try:
        found = request(url.rstrip("/"), entries)
    except FileNotFoundError:
        raise no_bucket(url) from None
    files = [_file(f"{scheme}://{bucket}/{entry['path']}", entry) for entry in found]
    return sorted((file for file in files if file.size or find(file.url)), key=str)


def find_like(pattern: str) -> list[RemoteFile]:
    """Lists the objects that a pattern such as `gs://bucket/*.txt` names, in their order."""
    parts = pattern.split("/")
    plain = next(number for number, part in enumerate(parts) if re.search(r"[*?[]", part))
    below = find_below("/".join(parts[:plain]))
    return [file for file in below if _is_like(file.url.split("/")[plain:], parts[plain:])]


def content(url: str) -> bytes | None:
    """Reads an object; None if there is none."""
    import obstore

    with contextlib.suppress(FileNotFoundError):
        return request(url, lambda store, name: bytes(obstore.get(store, name).bytes()))
    return None


def read(file: RemoteFile, begin: int = 0, end: int | None = None) -> bytes:
    """Reads the bytes of a range, as far as the object has them.

    Raises:
      StorageError: the object was replaced since it was found, or the store cannot be used.
    """
    import obstore
    from obstore.exceptions import PreconditionError

    end = file.size if end is None else min(end, file.size)
    if begin >= end:
        return b""
    options: Any = {"range": (begin, end)}
    if file.version:
        options["if_match"] = f'"{file.version.removeprefix("md5:")}"'

    def get(store: Any, name: str) -> bytes:
        found = bytes(obstore.get(store, name, options=options).bytes())
        if len(found) != end - begin:
            raise ConnectionError(f"{len(found)} of {end - begin} bytes")
        return found

    try:
        return request(file.url, get)
    except FileNotFoundError:
        raise missing(file.url) from None
    except PreconditionError:
        raise StorageError(
            f"{file}: it was replaced while it was read; start again when nobody writes it."
        ) from None


def write(url: str, data: bytes) -> None:
    """Writes an object, which appears whole or not at all."""
    _send(url, len(data), lambda: io.BytesIO(data))


def delete(url: str) -> None:
    """Deletes an object if there is one."""
    import obstore

    with contextlib.suppress(FileNotFoundError):
        request(url, lambda store, name: obstore.delete(store, name))


def upload(path: Path, url: str) -> None:
    """Copies a local file to an object, which appears whole or not at all."""
    _send(url, path.stat().st_size, lambda: path.open("rb"))


def download(file: RemoteFile, path: Path) -> None:
    """Copies an object to a new local file, in a directory that the caller publishes whole."""

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
    """Returns the error that an object, or its bucket, does not exist."""
    import obstore

    try:
        with contextlib.suppress(StorageError):  # who may read objects need not be allowed to list
            request(url, lambda store, name: next(iter(obstore.list(store, name)), None))
    except FileNotFoundError:
        return no_bucket(url)
    return StorageError(
        f"{url}: the bucket has no object of this name, and none below it; check the name."
    )


def _send(url: str, size: int, read: Callable[[], BinaryIO]) -> None:
    """Writes what a file holds: in one request, or in parts that become an object together."""
    import obstore

    def put(store: Any, name: str) -> None:
        with read() as file:
            obstore.put(store, name, file.read(), use_multipart=False)

    def put_parts(store: Any, name: str) -> None:
        block = max(BLOCK, size // PARTS + 1)
        # not as a context, which would complete the object after an error
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
    return (
        bool(parts)
        and fnmatch.fnmatchcase(parts[0], pattern[0])
        and _is_like(parts[1:], pattern[1:])
    )


def _file(url: str, entry: Any) -> RemoteFile:
    tag = (entry["e_tag"] or "").strip('"')
    is_digest = url.startswith("s3") and len(tag) == 32  # as runs that began earlier name it
    return RemoteFile(url, entry["size"], f"md5:{tag}" if is_digest else tag)
