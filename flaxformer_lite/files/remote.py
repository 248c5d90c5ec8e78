"""Objects in stores, such as `gs://bucket/name`: listed, read in ranges, and copied whole, checked
by size and checksum."""

import base64
import concurrent.futures
import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flaxformer_lite.files.stores import StorageError, no_bucket, run

BLOCK = 1 << 23  # bytes of a request
STREAMS = 8  # requests of a download at a time


@dataclass(frozen=True)
class RemoteFile:
    """An object that is read like a file.

    Attributes:
      url: its address.
      size: bytes.
      checksum: of the content, as `crc32c:` or `md5:` and hex digits; empty where the store gives
        none.
      version: changes with the content.
    """

    url: str
    size: int
    checksum: str
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
    with contextlib.suppress(FileNotFoundError):
        entry = run(url, lambda files: files._info(_key(url)))
        return _file(url, entry) if entry["type"] == "file" else None
    return None


def find_below(url: str) -> list[RemoteFile]:
    """Lists all objects whose names begin with `url/`, in the order of their names."""
    return _listed(url, "_find")


def find_like(pattern: str) -> list[RemoteFile]:
    """Lists the objects that a pattern such as `gs://bucket/*.txt` names, in their order."""
    return _listed(pattern, "_glob")


def read(file: RemoteFile, begin: int = 0, end: int | None = None) -> bytes:
    """Reads the bytes of a range, as far as the object has them."""
    end = file.size if end is None else min(end, file.size)
    if begin >= end:
        return b""

    async def cat(files: Any) -> bytes:
        found = await files._cat_file(_key(file.url), start=begin, end=end)
        if len(found) != end - begin:
            raise ConnectionError(f"{len(found)} of {end - begin} bytes")
        return found

    with _existing(file.url):
        return run(file.url, cat)


def upload(path: Path, url: str) -> None:
    """Copies a local file to an object, which appears whole or not at all."""

    def copy() -> tuple[RemoteFile, BinaryIO]:
        run(url, lambda files: files._put_file(str(path), _key(url)))
        return _found(url), path.open("rb")

    _checked(url, copy)


def download(file: RemoteFile, path: Path) -> None:
    """Copies an object to a new local file, in a directory that the caller publishes whole."""

    def copy() -> tuple[RemoteFile, BinaryIO]:
        with path.open("wb") as out, concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            blocks = [
                pool.submit(_copy, file, at, out.fileno()) for at in range(0, file.size, BLOCK)
            ]
            try:
                for block in blocks:
                    block.result()
            finally:
                pool.shutdown(cancel_futures=True)
        return file, path.open("rb")

    _checked(file.url, copy)


def missing(url: str) -> StorageError:
    """Returns the error that an object, or its bucket, does not exist."""
    bucket, _, _ = _key(url).partition("/")
    try:
        with contextlib.suppress(
            StorageError
        ):  # who may read objects need not be allowed to list them
            if url.startswith("gs"):
                run(url, lambda files: files._call("GET", "b/{}/o", bucket, maxResults=1))
            else:
                run(url, lambda files: files._call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1))
    except FileNotFoundError:
        return no_bucket(url)
    return StorageError(
        f"{url}: the bucket has no object of this name, and none below it; check the name."
    )


@contextlib.contextmanager
def _existing(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise missing(url) from None


def _listed(url: str, method: str) -> list[RemoteFile]:
    with _existing(url):
        found = run(url, lambda files: getattr(files, method)(_key(url), detail=True))
    scheme = url.partition("://")[0]
    entries = [
        entry
        for entry in found.values()
        if entry["type"] == "file" and not entry["name"].endswith("/")
    ]
    return sorted((_file(f"{scheme}://{entry['name']}", entry) for entry in entries), key=str)


def _found(url: str) -> RemoteFile:
    if (file := find(url)) is None:
        raise missing(url)
    return file


def _key(url: str) -> str:
    return url.partition("://")[2].rstrip("/")


def _file(url: str, entry: dict[str, Any]) -> RemoteFile:
    tag = str(entry.get("ETag") or entry.get("etag") or "").strip('"')
    checksum = ""
    if entry.get("crc32c"):
        checksum = f"crc32c:{base64.b64decode(entry['crc32c']).hex()}"
    elif url.startswith("s3") and len(tag) == 32:  # else of many parts, and no hash of the content
        checksum = f"md5:{tag}"
    return RemoteFile(
        url, int(entry["size"]), checksum, checksum or str(entry.get("generation") or tag)
    )


def _checked(url: str, copy: Callable[[], tuple[RemoteFile, BinaryIO]]) -> None:
    """Copies, and once more if the copy does not agree with what the store says of the object."""
    for _ in range(2):
        with _existing(url):
            file, local = copy()
        with local:
            problem = _difference(file, local)
        if not problem:
            return
    raise StorageError(f"{url}: {problem}; it is damaged, or was replaced meanwhile: try again.")


def _difference(file: RemoteFile, local: BinaryIO) -> str:
    if (size := local.seek(0, os.SEEK_END)) != file.size:
        return f"{size} bytes here, and {file.size} in the store"
    local.seek(0)
    kind, _, due = file.checksum.partition(":")
    if not due:
        return ""
    if kind == "md5":
        digest: Any = hashlib.md5(usedforsecurity=False)
    else:
        import google_crc32c

        digest = google_crc32c.Checksum()
    while block := local.read(BLOCK):
        digest.update(block)
    agrees = digest.digest().hex() == due or (kind == "md5" and _has_own_key(file.url))
    return "" if agrees else f"another {kind} here than in the store"


def _has_own_key(url: str) -> bool:
    """Returns whether an object of S3 is encrypted with a key of its owner's, so that its ETag is
    no hash of the content."""
    bucket, _, name = _key(url).partition("/")
    head = run(url, lambda files: files._call_s3("head_object", Bucket=bucket, Key=name))
    return "kms" in head.get("ServerSideEncryption", "") or "SSECustomerAlgorithm" in head


def _copy(file: RemoteFile, begin: int, number: int) -> None:
    os.pwrite(number, read(file, begin, begin + BLOCK), begin)
