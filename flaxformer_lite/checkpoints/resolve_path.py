"""Reads and writes directories of models on this machine, in a store, or on the Hub."""

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from flaxformer_lite.checkpoints import mirror, workdir
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.publish import new_directory, private_directory
from flaxformer_lite.pretrained.folder import OTHERS
from flaxformer_lite.storage import content_cache, fetch, hub, remote
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError, is_url

# Suffixes of the files beside weights.
READ = (
    ".json",
    ".jinja",
    ".model",
    ".spm",
    ".txt",
    ".bytes",
    "README.md",  # license and language, for the card of what is made of the model
)
WEIGHTS = (".safetensors", ".msgpack")
SINGLE = ("model.safetensors", "adapter_model.safetensors")
TOP_WEIGHTS = re.compile(r"[^/]+\.safetensors")
LAST = ("config.json", "adapter_config.json")  # files that make a directory a model or an adapter
# The files of a directory, of the layers that follow a sentence encoder, and more chat templates.
INSIDE = re.compile(r"[^/]+|\d+_\w+/[^/]+|additional_chat_templates/[^/]+")


def fetch_model(url: str, *, weights: bool = True) -> Path:
    """Copies the files to read of a model at an address; returns their folder on this machine.

    Args:
      url: an address of published weights, or of a workdir, whose checkpoints are not copied.
      weights: whether the weights are needed, or only the files beside them.

    Raises:
      StorageError: there is nothing to read, or the store cannot be used.
    """
    if hub.is_hub(url):
        return _from_hub(url, weights)
    if workdir.is_workdir(mirror.place_of(url)):
        return _copy_of(url)
    return fetch.on_disk(url, lambda names: _needed(url, names, weights))


def _needed(path: str, names: list[str], weights: bool) -> list[str]:
    """Selects the files of a model to copy, from all names below its address."""
    inside = [name for name in names if INSIDE.fullmatch(name)]
    if any(name.endswith(".safetensors") for name in inside):
        inside = [name for name in inside if not name.endswith(".msgpack")]
    if "model.safetensors" in inside:  # others hold the same weights in another form
        inside = [name for name in inside if name in SINGLE or not TOP_WEIGHTS.fullmatch(name)]
    chosen = []
    for name in inside:
        is_layer = "/" in name  # a layer of a sentence model; these have few weights
        suffixes = (*READ, *WEIGHTS) if weights or is_layer else READ
        if name.endswith(suffixes):
            chosen.append(name)
    others = []
    if not any(name.endswith(WEIGHTS) for name in chosen):
        others = [name for name in inside if name in OTHERS]
    if weights and others:
        raise StorageError(
            f"{path}/{others[0]}: {OTHERS[others[0]]}, and is not read here; save the model"
            " there as safetensors, where transformers and torch are installed."
        )
    if weights and not set(LAST) & set(inside):
        raise StorageError(
            f"{path}: no config.json; was writing it interrupted? Pass the address that"
            " save_pretrained wrote, or write it again."
        )
    return chosen


@functools.cache
def _from_hub(address: str, weights: bool) -> Path:
    """Downloads a model from the Hub, once in a process, which so sees one commit of it."""

    def is_whole(names: list[str]) -> bool:
        return not weights or any(name.endswith(WEIGHTS) for name in names)

    return hub.on_disk(address, lambda names: _needed(address, names, weights), is_whole)


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
    """Yields an empty directory, whose files replace those at `target` when the block succeeds.

    At an address, config.json is deleted first and written last, so that an interrupted write is
    never mistaken for a model; on the Hub, all files are one commit.

    Args:
      target: a directory, or an address.
      check: called with the names of the files at an address; raises if they may not be replaced.
      carry: as in `files.publish.new_directory`.

    Raises:
      ConfigError: `target` may not be replaced or cannot be written.
    """
    if hub.is_hub(target):
        hub.check_push(str(target))
        room = content_cache.local(str(target))
        room.mkdir(parents=True, exist_ok=True)
        # Removes what a killed process has left of any push.
        with private_directory(room / "push", alone=False) as made:
            yield made
            hub.push(made, str(target))
        return
    if not is_url(target):
        with new_directory(expand_home(target), carry=carry) as made:
            yield made
        return
    url = str(target).rstrip("/")
    room = content_cache.local(str(target))
    # The hash, as an address may be too long for the name of a file.
    sending = room / f"sending-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    before = remote.map_below(url)
    if before and carry is None:
        state = "" if set(LAST) & set(before) else " without a config.json (interrupted writing?)"
        raise ConfigError(
            f"{target}: exists{state} and is not overwritten; remove it or choose another."
        )
    if check:
        check(list(before))
    room.mkdir(parents=True, exist_ok=True)
    with private_directory(sending) as made:  # removes what a killed process has left there
        yield made
        replaced = []
        if carry:
            replaced = [name for name in before if not carry(name)]
        _send(made, url, replaced)


def _send(folder: Path, url: str, old: list[str]) -> None:
    """Deletes config.json and the `old` files, and sends those of a folder, LAST at the end."""

    def order(name: str) -> tuple[bool, bool, str]:
        return name in LAST, name.endswith(".index.json"), name

    target = Objects(url)
    target.delete("config.json")
    target.delete_all(name for name in old if not (folder / name).is_file())
    remote.upload_all(folder, url, order)
