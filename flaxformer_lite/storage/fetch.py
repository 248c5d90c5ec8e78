"""Copies of objects on this machine, for what is mapped, or read by libraries that know paths
only."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache, remote
from flaxformer_lite.storage.stores import StorageError, is_url, name_copy


def on_disk(path: str | Path, choose: Callable[[list[str]], list[str]] = list) -> Path:
    """Returns a path on this machine: the same one, or, of an address, that of a copy in
    FLAXFORMER_LITE_CACHE.

    The copy is verified when it is made, and made anew when the store's listing says that a file
    has changed.

    Args:
      path: a file or folder.
      choose: returns which files of a folder are copied, of their names below it.

    Raises:
      StorageError: it does not exist, or the store cannot be used.
    """
    if not is_url(path):
        return Path(path).expanduser()
    url = str(path).rstrip("/")
    single = remote.find(url)
    below = {str(file)[len(url) + 1 :]: file for file in ([] if single else remote.find_below(url))}
    if not (single or below):
        raise remote.missing(url)
    files = {single.name: single} if single else {name: below[name] for name in choose([*below])}
    if outside := [file for name, file in files.items() if ".." in name.split("/")]:
        raise StorageError(
            f"{outside[0]}: a name with '..' would lie elsewhere on a disk; rename it."
        )

    def write(folder: Path) -> None:
        with progress.reading(
            f"fetching {url}", sum(file.size for file in files.values())
        ) as advance:
            for name, file in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                remote.download(file, folder / name)
                advance(file.size)

    digest = hashlib.sha256(
        f"{[(str(file), file.size, file.version) for file in files.values()]}".encode()
    )
    name = f"{url.rpartition('/')[2]}-{digest.hexdigest()[:16]}"
    folder = content_cache.folder(content_cache.local(url) / "fetched", name, write)
    copy = folder / single.name if single else folder
    name_copy(copy, url)
    return copy
