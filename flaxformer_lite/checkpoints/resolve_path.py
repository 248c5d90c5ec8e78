"""Directories of models wherever they lie: on this machine, or below an address in a store."""

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from flaxformer_lite.checkpoints import mirror, workdir
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.publish import new_directory, private_directory
from flaxformer_lite.pretrained.folder import OTHERS
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache, fetch, remote
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError, is_url, name_copy

# suffixes of what lies beside weights
READ = (
    ".json",
    ".jinja",
    ".model",
    ".spm",
    ".txt",
    ".bytes",
)
WEIGHTS = (".safetensors", ".msgpack")
LAST = ("config.json", "adapter_config.json")  # what makes a directory a model, or an adapter
# a directory's own files, and those of the layers behind a sentence encoder
INSIDE = re.compile(r"[^/]+|\d+_\w+/[^/]+")


def on_disk(path: str | Path, *, weights: bool = True) -> Path:
    """Returns a model's directory on this machine: the same one, or a copy of the files that are
    read at an address.

    Args:
      path: a directory of published weights, or a workdir, of which checkpoints are read where they
        lie.
      weights: whether the weights are needed, or only what lies beside them.

    Raises:
      StorageError: there is nothing to read, or the store cannot be used.
    """

    def choose(names: list[str]) -> list[str]:
        inside = [name for name in names if INSIDE.fullmatch(name)]
        if any(name.endswith(".safetensors") for name in inside):
            inside = [name for name in inside if not name.endswith(".msgpack")]
        kinds = (*READ, *WEIGHTS) if weights else READ
        found = [
            name
            for name in inside
            if name.endswith(kinds) or ("/" in name and name.endswith(WEIGHTS))
        ]
        others = (
            []
            if any(name.endswith(WEIGHTS) for name in found)
            else [name for name in inside if name in OTHERS]
        )
        if weights and others:
            raise StorageError(
                f"{path}/{others[0]}: {OTHERS[others[0]]}, and is not read here; save the model"
                " there as safetensors, where transformers and torch are installed."
            )
        if weights and not set(LAST) & set(inside):
            raise StorageError(
                f"{path}: no config.json, as after a kill while it was written; pass the address"
                " that save_pretrained wrote, or write it again."
            )
        return found

    if is_url(path) and workdir.is_workdir(mirror.place_of(path)):
        return _copy_of(str(path))
    return fetch.on_disk(path, choose)


@functools.cache
def _copy_of(url: str) -> Path:
    return mirror.fetched(url)


@contextlib.contextmanager
def new_place(
    target: str | Path,
    *,
    check: Callable[[list[str]], None] | None = None,
    carry: Callable[[str], bool] | None = None,
) -> Iterator[Path]:
    """Yields an empty directory whose files take the place of those at `target` when the block ends
    without an error.

    At an address, config.json is deleted first and written last: a kill between leaves what no
      reader takes for a model.

    Args:
      target: a directory, or an address.
      check: refuses the names of the files at an address.
      carry: as in `files.publish.new_directory`.

    Raises:
      ConfigError: `target` may not be replaced or cannot be written.
    """
    if not is_url(target):
        with new_directory(Path(target).expanduser(), carry=carry) as made:
            yield made
        return
    url = str(target).rstrip("/")
    room = content_cache.local(str(target))
    # an address may be too long for a name
    sending = room / f"sending-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    before = {str(file)[len(url) + 1 :]: file for file in remote.find_below(url)}
    if before and carry is None:
        left = "" if set(LAST) & set(before) else " without a config.json, as after a kill,"
        raise ConfigError(
            f"{target}: exists{left} and is not overwritten; remove it or choose another."
        )
    if check:
        check(list(before))
    room.mkdir(parents=True, exist_ok=True)
    name_copy(sending, url)
    with private_directory(sending) as made:  # removes what one that was killed has left
        yield made
        _send(made, url, [name for name in before if carry and not carry(name)])


def _send(folder: Path, url: str, old: list[str]) -> None:
    files = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    there = Objects(url)
    there.write_all({"config.json": None})
    with progress.reading(
        f"sending {url}", sum(path.stat().st_size for path in files.values())
    ) as advance:
        for name in sorted(
            files, key=lambda name: (name in LAST, name.endswith(".index.json"), name)
        ):
            if name == "config.json":
                there.write_all(dict.fromkeys(set(old) - set(files)))
            remote.upload(files[name], f"{url}/{name}")
            advance(files[name].stat().st_size)
