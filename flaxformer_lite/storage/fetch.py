"""Downloads remote objects for code that needs a local path."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from flaxformer_lite.files.home import expand_home
from flaxformer_lite.storage import content_cache, remote
from flaxformer_lite.storage.stores import is_url


def on_disk(path: str | Path, choose: Callable[[list[str]], list[str]] = list) -> Path:
    """Returns a local path; for an address, of a copy in FLAXFORMER_LITE_CACHE.

    The copy is verified when it is made, and made again when the store's listing says that a file
    has changed.

    Args:
      path: a file or folder, or the address of one.
      choose: selects the files of a remote folder to copy, from their names relative to it.

    Raises:
      StorageError: the address does not exist, or the store cannot be used.
    """
    if not is_url(path):
        return expand_home(path)
    url = str(path).rstrip("/")
    single = remote.find(url)
    if single:
        files = {single.name: single}
    else:
        below = remote.map_below(url)
        if not below:
            raise remote.missing(url)
        files = {name: below[name] for name in choose([*below])}

    def write(folder: Path) -> None:
        remote.download_all(files, folder, url)

    versions = [(str(file), file.size, file.version) for file in files.values()]
    digest = hashlib.sha256(f"{versions}".encode())
    above, _, last = url.replace("://", "/").rpartition("/")  # so that errors name the address
    root = content_cache.local(url) / "fetched" / above
    folder = content_cache.folder(root, f"{last}-{digest.hexdigest()[:16]}", write)
    return folder / single.name if single else folder
