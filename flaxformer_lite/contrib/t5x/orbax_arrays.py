"""Reads arrays from the folders that Orbax writes, by their paths in the saved tree."""

from pathlib import Path

from flaxformer_lite.contrib.t5x.arranged_tensors import Readable
from flaxformer_lite.contrib.t5x.zarr_arrays import open_zarr
from flaxformer_lite.files.read import Json, quote_name, read_object
from flaxformer_lite.pretrained.flax_msgpack import read_tree
from flaxformer_lite.pretrained.safetensors import WeightsError, check_name

METADATA = "_METADATA"
STRUCTURE = "checkpoint"  # before 2023: the tree in msgpack, with a placeholder for each array
PLACEHOLDER = "PLACEHOLDER://"
MERGED = "manifest.ocdbt"
TreePath = tuple[str, ...]


def is_folder(place: Path) -> bool:
    """Returns whether Orbax wrote this folder."""
    return (place / METADATA).is_file() or (
        (place / MERGED).is_file() and (place / STRUCTURE).is_file()
    )


def tree_paths(place: Path) -> list[TreePath]:
    """Lists the paths of all leaves.

    Raises:
      WeightsError: the list is damaged.
    """
    if not (place / METADATA).is_file():
        return _placeholders(read_tree(place / STRUCTURE))
    paths = []
    for leaf in _metadata(place).get("tree_metadata", {}).values():
        keys = []
        if isinstance(leaf, dict):
            keys = leaf.get("key_metadata", [])
        paths.append(tuple(str(key.get("key")) for key in keys if isinstance(key, dict)))
    return paths


def open_array(place: Path, path: TreePath) -> Readable:
    """Opens an array, which is read later.

    Raises:
      WeightsError: it is missing, damaged or of integers, or the path is not that of an array.
    """
    name = ".".join(path)
    check_name(place, name)
    if "/" in name or "\\" in name:
        raise WeightsError(f"{place}: {quote_name(name)} is no name of an array.")
    kvstore: Json = {"driver": "file", "path": f"{place.absolute()}/{name}/"}
    if (place / MERGED).is_file():
        base = f"file://{place.absolute()}/"
        kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    driver = "zarr"
    if (place / METADATA).is_file() and _metadata(place).get("use_zarr3"):
        driver = "zarr3"
    return open_zarr(kvstore, f"{place}: {name}", driver)


def _metadata(place: Path) -> Json:
    return read_object(place / METADATA, {"tree_metadata": dict}, error=WeightsError)


def _placeholders(tree: object, above: TreePath = ()) -> list[TreePath]:
    if isinstance(tree, dict):
        paths = []
        for key, below in tree.items():
            paths += _placeholders(below, (*above, str(key)))
        return paths
    if isinstance(tree, str) and tree.startswith(PLACEHOLDER):
        return [above]
    return []
