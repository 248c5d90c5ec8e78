"""Reads and writes the arrays of a train state, in the zarr format and layout of orbax.

Each process writes its own shards to a database of few objects.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorstore

from flaxformer_lite.checkpoints.record import STATE, tell_unreadable
from flaxformer_lite.files.read import Json
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.storage.kvstore import explain_errors, store_spec
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.types import Array, Tree

Index = tuple[Any, ...]  # slices, or an ellipsis
# A cache for the nodes of a database's tree; each call has its own.
NODES = {"cache_pool#nodes": {"total_bytes_limit": 10**8}}
MAX_OBJECT_BYTES = 1 << 29  # bytes of an object, above which another one begins
MAX_SEARCHED_BYTES = 1 << 30  # bytes of data files that are searched for an array
# Nearby reads are merged, as orbax does.
NEARBY = {
    "threshold_bytes": 10**6,
    "merged_bytes": MAX_OBJECT_BYTES,
    "interval": "1ms",
}


class HostShards(NamedTuple):
    """The shards of an array that one process writes, on the host."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: tuple[int, ...]  # shape of a shard
    pieces: list[tuple[Index, np.ndarray]]  # each shard with its place in the array


def parts(state: object, *, first: bool) -> dict[str, HostShards]:
    """Copies to the host what this process writes: the shards whose first replica it holds.

    Args:
      state: tree of arrays, on devices or of numpy; process 0 writes numpy's.
      first: whether this is process 0.

    Returns:
      The part of each array, by its path.
    """
    copied = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(state):
        pieces: list[tuple[Index, np.ndarray]] = []
        if isinstance(leaf, jax.Array):
            chunk = leaf.sharding.shard_shape(leaf.shape)
            for shard in leaf.addressable_shards:
                if shard.replica_id == 0:
                    # A copy and no view, as the next step donates the state's memory.
                    pieces.append((shard.index, np.array(shard.data)))
        else:
            chunk = np.shape(leaf)
            if first:
                pieces.append(((...,), np.array(leaf)))
        copied[path_of(keys)] = HostShards(np.shape(leaf), leaf.dtype, chunk, pieces)
    return copied


def write(at: Objects, copied: dict[str, HostShards], index: int) -> None:
    """Writes the shards of process `index` in one transaction.

    Process 0 also writes the metadata of the arrays.
    """
    base = _base(at, index)
    first = index == 0
    # Only process 0 writes the metadata of arrays, which the others must not look for yet.
    how: dict[str, Any] = {"create": True} if first else {"open": True, "assume_metadata": True}
    shared = tensorstore.Context(NODES)
    with tensorstore.Transaction() as transaction:
        opening = {}
        for path, part in copied.items():
            if first or part.pieces:
                opening[path] = tensorstore.open(
                    _spec(base, path),
                    dtype=part.dtype,
                    shape=part.shape,
                    transaction=transaction,
                    context=shared,
                    chunk_layout=tensorstore.ChunkLayout(chunk_shape=part.chunk),
                    **how,
                )
        writing = []
        for path, part in copied.items():
            for place, piece in part.pieces:
                writing.append(opening[path].result()[place].write(piece))
        for written in writing:
            written.result()


def merge(at: Objects, count: int) -> None:
    """Merges the databases of all processes into one, which refers to their contents."""
    shared = tensorstore.Context(NODES)
    merged = tensorstore.KvStore.open(_database(_base(at)), context=shared).result()
    with tensorstore.Transaction(atomic=True) as transaction:
        for index in range(count):
            part = tensorstore.KvStore.open(_database(_base(at, index)), context=shared).result()
            part.experimental_copy_range_to(merged.with_transaction(transaction)).result()


def read(at: Path | Objects, target: Tree) -> Tree:
    """Reads arrays of a checkpoint onto the devices of `target`, each process its own shards.

    Args:
      at: a checkpoint, `.../30`, that this package or orbax wrote.
      target: tree of ShapeDtypeStructs; one without a sharding is read as a numpy array.

    Returns:
      A tree of arrays like `target`.

    Raises:
      StorageError: the store cannot be reached, as opposed to a damaged checkpoint.
      UnreadableError: the system does not let this process read a file.
    """
    if isinstance(at, Objects):
        with explain_errors(at.url, content=True):
            return _read(_base(at), target)
    with tell_unreadable(at):
        return _read(_base(at), target)


def _read(base: Json, target: Tree) -> Tree:
    shared = tensorstore.Context(NODES)
    flat, tree = jax.tree_util.tree_flatten_with_path(target)
    opening = []
    for keys, _ in flat:
        place = _spec(base, path_of(keys))
        opening.append(tensorstore.open(place, open=True, read=True, context=shared))
    reading: list[dict[str, tensorstore.Future]] = []
    for (_, leaf), array in zip(flat, opening, strict=True):
        devices: dict[Any, Any] = {None: ...}
        if leaf.sharding:
            devices = leaf.sharding.addressable_devices_indices_map(leaf.shape)
        # Devices with the same part share one reading.
        indices = {str(index): index for index in devices.values()}
        reading.append({name: array.result()[index].read() for name, index in indices.items()})
    arrays = [_array(leaf, pieces) for (_, leaf), pieces in zip(flat, reading, strict=True)]
    return jax.tree_util.tree_unflatten(tree, arrays)


def _array(leaf: jax.ShapeDtypeStruct, pieces: dict[str, tensorstore.Future]) -> Array:
    if leaf.sharding is None:
        return pieces[str(...)].result()
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: pieces[str(index)].result()
    )


def lies_in(at: Path | Objects, path: str) -> list[str]:
    """Lists the files of a checkpoint that hold an array.

    The database has no list of them, so up to MAX_SEARCHED_BYTES are searched for the array's.
    """
    if isinstance(at, Objects):
        names = at.names()
    else:
        names = [file.relative_to(at).as_posix() for file in at.rglob("d/*")]
    stored = _stored(at, path)
    holding = []
    searched = 0
    for name in names:
        if name.split("/")[-2:-1] != ["d"]:
            continue
        if isinstance(at, Objects):
            data = at.read(name) or b""
        else:
            data = (at / name).read_bytes()
        if any(piece in data for piece in stored):
            holding.append(name)
        searched += len(data)
        if searched > MAX_SEARCHED_BYTES:
            break
    return holding


def _stored(at: Path | Objects, path: str) -> list[bytes]:
    """Returns the encoded shards of an array, as the data files of a checkpoint hold them."""
    opening = tensorstore.KvStore.open(_database(_base(at)), context=tensorstore.Context(NODES))
    database = opening.result()
    prefix = f"{path.replace('/', '.')}/".encode()
    pieces = []
    for key in database.list().result():
        if not key.startswith(prefix):
            continue
        value = database.read(key).result().value
        if not value.startswith(b"{"):  # the array's metadata
            pieces.append(value)
    return pieces


def _base(at: Path | Objects, index: int | None = None) -> Json:
    """Returns the place of the database of process `index`, or of the merged one."""
    place = f"{STATE}/" if index is None else f"{STATE}/ocdbt.process_{index}/"
    if isinstance(at, Objects):
        return store_spec(f"{at}/{place}")
    return {"driver": "file", "path": f"{at.resolve()}/{place}"}


def _database(base: Json) -> Json:
    database = {
        "driver": "ocdbt",
        "base": base,
        "target_data_file_size": MAX_OBJECT_BYTES,
        "cache_pool": "cache_pool#nodes",
    }
    for name, value in NEARBY.items():
        database[f"experimental_read_coalescing_{name}"] = value
    return database


def _spec(base: Json, path: str) -> Json:
    return {
        "driver": "zarr",
        "kvstore": {**_database(base), "path": f"{path.replace('/', '.')}/"},
        "metadata": {"compressor": {"id": "zstd", "level": 1}},
        # Else shards of zeros would be left out, and look like lost ones.
        "store_data_equal_to_fill_value": True,
    }
