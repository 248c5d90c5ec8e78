"""The files of a dataset on the Hugging Face Hub, by its configs and splits.

`hf://datasets/ORG/NAME` or `hf://datasets/ORG/NAME@REVISION` may go on with a config, a split,
both, a folder, or a file. Configs and splits are those that the card (README.md) lists, or else
those that folders and names of files say, as for Hugging Face's `datasets`.
"""

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path

from flaxformer_lite.files.read import Json, read_object
from flaxformer_lite.storage import compressed, content_cache, hub
from flaxformer_lite.storage.hub import Snapshot
from flaxformer_lite.storage.stores import StorageError

CARD = "README.md"
COLUMNAR = (".parquet", ".arrow")
# A dataset is read from its files of the first of these kinds that it has.
KINDS = (*COLUMNAR, ".jsonl", ".ndjson", ".csv", ".tsv")
# Words in the names of files and folders, and the split that they say.
WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
NAMED = 12  # most configs or splits that a message names
Splits = dict[str, list[str]]  # files by their split; "": by none, as the address names them


def fetch_split(address: str, wanted: Sequence[str]) -> list[Path]:
    """Downloads the files of a split to the Hub's cache, and returns them in order.

    Args:
      address: of a dataset, or of a part of it; a split in it is read, whatever is wanted.
      wanted: names of the split; the first one that exists is read.

    Raises:
      StorageError: there is no such dataset, config or split, none of its files can be read, or the
        Hub cannot be reached and its cache lacks them.
    """
    splits = _find_splits(address)
    name = next((name for name in ("", *wanted) if name in splits), None)
    if name is None:
        raise StorageError(
            f"{address}: has no split {' or '.join(wanted)}, only {_listed(splits)}; name one, as"
            f" in {address.rstrip('/')}/{next(iter(splits))}."
        )
    files = splits[name]
    snapshot, _ = _open(_repository(address))
    folder = hub.download(snapshot, files, snapshot.commit)
    return [folder / file for file in files]


def list_splits(address: str) -> tuple[str, ...]:
    """Returns the names of the splits at an address; () if it names one, or files.

    Raises:
      StorageError: as `fetch_split`.
    """
    return tuple(filter(None, _find_splits(address)))


def _repository(address: str) -> str:
    """Returns the address without what follows the name and the revision."""
    path = hub.read_address(address).path
    return address.rstrip("/").removesuffix(f"/{path}")


@functools.cache
def _open(repository: str) -> tuple[Snapshot, Json]:
    """Opens a dataset, once in a process, which so sees one commit of it; and reads its card."""
    snapshot = hub.open_snapshot(repository)

    def write(folder: Path) -> None:
        if snapshot.cached:
            hub.refuse_cached(snapshot)
        (folder / "names.json").write_text(json.dumps({"names": snapshot.names}))

    # The Hub's cache does not tell which files of a dataset are missing in it.
    room = content_cache.local(repository)
    listing = content_cache.folder(room, f"dataset-{snapshot.commit}", write)
    names = read_object(listing / "names.json", {"names": list})["names"]
    if snapshot.cached:
        hub.warn_cached(snapshot)
    snapshot = snapshot._replace(names=sorted(names))
    # By this download the Hub's cache also learns which commit the revision is.
    first = [name for name in (CARD, ".gitattributes") if name in names][:1]
    folder = hub.download(snapshot, first, hub.read_address(repository).revision)
    if CARD not in first:
        return snapshot, {}
    return snapshot, hub.read_card(folder / CARD)


def _find_splits(address: str) -> Splits:
    """Returns the files of each split at an address."""
    repository = _repository(address)
    snapshot, card = _open(repository)
    path = hub.read_address(address).path
    if path in snapshot.names:
        return {"": [path]}
    readable = [name for name in snapshot.names if _is_readable(name)]
    folders = _configs_of_names(readable)
    configs = _configs_of_card(card, readable) or folders
    if not any(configs.values()):
        kinds = sorted({compressed.kind(Path(name)) or name for name in snapshot.names})
        raise StorageError(
            f"{address}: its data are in no {', '.join(KINDS)} ({_listed(kinds)}); the Hub's own"
            f" copy as parquet, where it makes one, is"
            f" hf://datasets/{hub.read_address(address).name}@refs/convert/parquet."
        )
    splits = _choose(configs, path)
    if splits is None and path:
        splits = _choose(folders, path)
    below = [name for name in readable if name.startswith(f"{path}/")]
    if splits is None and below:
        configs = _configs_of_names(below, path)
        splits = _choose(configs, path) or _choose(configs, "")
    if splits:
        return splits
    rule = "has several configs"
    if path and not below:
        rule = f"has no config, split, folder or file {path}"
    inside = [config for config in configs if configs[config]]
    if len(inside) == 1:
        inside = [f"{inside[0]}/{split}".strip("/") for split in configs[inside[0]]]
    if inside == [""]:  # no name says a config or a split
        inside = readable
    raise StorageError(
        f"{address}: {rule}; name one of {_listed(inside)}, as in {repository}/{inside[0]}."
    )


def _is_readable(name: str) -> bool:
    return compressed.kind(Path(name)) in KINDS and not f"/{name}".count("/.")


def _choose(configs: dict[str, Splits], path: str) -> Splits | None:
    """Returns the splits of the config that a path names, or the split that it names; or None."""
    usual = configs.get("default")
    if len(configs) == 1:
        usual = next(iter(configs.values()))
    named = {"": usual or {}, **configs}
    for config, splits in named.items():
        if splits and path == config:
            return splits
        for split, files in splits.items():
            if split and path == f"{config}/{split}".strip("/"):
                return {"": files}
    return None


def _configs_of_card(card: Json, names: list[str]) -> dict[str, Splits]:
    """Returns the files of each split of each config that a card lists."""
    configs = {}
    for entry in _as_list(card.get("configs")):
        if isinstance(entry, dict):
            splits = _splits_of_entry(entry, names)
            configs[str(entry.get("config_name", "default"))] = splits
            if entry.get("default") is True:
                configs["default"] = splits
    return configs


def _splits_of_entry(entry: Json, names: list[str]) -> Splits:
    folder = str(entry.get("data_dir") or "").removeprefix("./").strip("/")
    if folder:
        folder += "/"
    inside = [name for name in names if name.startswith(folder)]
    parts = _as_list(entry.get("data_files"))
    if not parts:
        return next(iter(_configs_of_names(inside, folder).values()), {})
    splits: Splits = {}
    for part in parts:
        split = "train"
        patterns = [part]
        if isinstance(part, dict):
            split = str(part.get("split", split))
            patterns = _as_list(part.get("path"))
        wanted = [_compile_pattern(folder + str(pattern)) for pattern in patterns]
        matching = [name for name in inside if any(at.fullmatch(name) for at in wanted)]
        splits[split] = splits.get(split, []) + matching
    return {split: splits[split] for split in splits if splits[split]}


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern of files, in which `*` stays in a folder and `**` does not."""
    found = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", pattern.removeprefix("./"))
    compiled = ""
    for part in found:
        if part.startswith("["):  # a set of letters, as in data/train-[0-9]*.csv
            compiled += part.replace("[!", "[^", 1)
        else:
            compiled += WILDCARDS.get(part, re.escape(part))
    return re.compile(compiled)


def _configs_of_names(names: list[str], below: str = "") -> dict[str, Splits]:
    """Groups files by folder and split, of the first of KINDS that there is.

    Where some names say a split, others are left out; where none does, all are one text or table.

    Args:
      names: of the files.
      below: a folder that they are in, which says none.
    """
    kinds = [compressed.kind(Path(name)) for name in names]
    chosen = min(kinds, key=KINDS.index, default="")
    same = [name for name, kind in zip(names, kinds, strict=True) if kind == chosen]
    configs: dict[str, Splits] = {}
    for name in same:
        parts = name.split("/")
        for number in reversed(range(len(Path(below).parts), len(parts))):
            split = _split_of(parts[number])
            if split:
                folder = "/".join(parts[:number] + parts[number + 1 : -1])
                configs.setdefault(folder, {}).setdefault(split, []).append(name)
                break
    if same and not configs:
        return {below: {"": same}}
    return configs


def _split_of(name: str) -> str:
    """Returns the split that a word in a name says, or ""."""
    words = re.split(r"[^A-Za-z]+", name.lower())
    for split, said in WORDS.items():
        if not set(said).isdisjoint(words):
            return split
    return ""


def _as_list(value: object) -> list:
    if isinstance(value, list):
        return value
    return [value] if value else []


def _listed(names: Sequence[str] | Splits) -> str:
    shown = list(names)
    if len(shown) > NAMED:
        return f"{', '.join(shown[:NAMED])}, ... ({len(shown)})"
    return ", ".join(shown)
