"""Arrays of a train state as zarr in a database of few objects, as orbax lays them out: each
process writes its own part."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorstore

from flaxformer_lite.checkpoints.record import STATE
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.storage.kvstore import explained, spec
from flaxformer_lite.storage.objects import Objects

Index = tuple[slice, ...]
# of a database's tree; each call remembers its own
NODES = {"cache_pool#nodes": {"total_bytes_limit": 10**8}}
LARGEST = 1 << 29  # bytes of an object, above which another one begins
SEARCHED = 1 << 30  # bytes of data files that are searched for an array
# reads that are made one, as orbax does
NEARBY = {
    "threshold_bytes": 10**6,
    "merged_bytes": LARGEST,
    "interval": "1ms",
}


class Part(NamedTuple):
    """The pieces of an array that one process holds, on the host."""

    shape: tuple[int, ...]
    dtype: Any
    chunk: tuple[int, ...]  # shape of a piece
    pieces: list[tuple[Index, np.ndarray]]


def parts(state: Any, *, first: bool) -> dict[str, Part]:
    """Copies to the host what this process writes: of each piece of an array, one process has the
    first copy.

    Args:
      state: arrays on devices, or numpy's, which process 0 writes.
      first: whether this is process 0.
    """
    copied = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(state):
        if isinstance(leaf, jax.Array):
            chunk = leaf.sharding.shard_shape(leaf.shape)
            own = [
                (s.index, np.array(s.data)) for s in leaf.addressable_shards if s.replica_id == 0
            ]
        else:
            chunk = np.shape(leaf)
            own = [((...,), np.array(leaf))] if first else []
        copied[path_of(keys)] = Part(np.shape(leaf), leaf.dtype, chunk, own)
    return copied


def write(at: Objects, copied: dict[str, Part], index: int) -> None:
    """Writes the pieces of process `index`, in one transaction; process 0 also writes what
    describes the arrays."""
    base = _base(at, index)
    first = index == 0
    how: dict[str, Any] = {"create": True} if first else {"open": True, "assume_metadata": True}
    shared = tensorstore.Context(NODES)
    with tensorstore.Transaction() as together:
        opened = {
            path: tensorstore.open(
                _spec(base, path),
                dtype=part.dtype,
                shape=part.shape,
                transaction=together,
                context=shared,
                chunk_layout=tensorstore.ChunkLayout(chunk_shape=part.chunk),
                **how,
            )
            for path, part in copied.items()
            if first or part.pieces
        }
        done = [
            opened[path].result()[index].write(piece)
            for path, part in copied.items()
            for index, piece in part.pieces
        ]
        for one in done:
            one.result()


def merge(at: Objects, count: int) -> None:
    """Makes one database of those of the processes, which keep the content."""
    shared = tensorstore.Context(NODES)
    whole = tensorstore.KvStore.open(_database(_base(at)), context=shared).result()
    with tensorstore.Transaction(atomic=True) as together:
        for index in range(count):
            part = tensorstore.KvStore.open(_database(_base(at, index)), context=shared).result()
            part.experimental_copy_range_to(whole.with_transaction(together)).result()


def read(at: Path | Objects, target: Any) -> Any:
    """Reads arrays of a checkpoint onto the devices of `target`, each process its own part.

    Args:
      at: a checkpoint, `.../30`, of ours or of orbax's.
      target: tree of ShapeDtypeStructs; where one has no sharding, a numpy array is made.

    Raises:
      StorageError: the store fails, and not what lies there.
    """
    with explained(str(at), content=True):
        return _read(_base(at), target)


def _read(base: dict[str, Any], target: Any) -> Any:
    shared = tensorstore.Context(NODES)
    flat, tree = jax.tree_util.tree_flatten_with_path(target)
    opening = [
        tensorstore.open(_spec(base, path_of(keys)), open=True, read=True, context=shared)
        for keys, _ in flat
    ]
    reading: list[dict[str, Any]] = []
    for (_, leaf), array in zip(flat, opening, strict=True):
        devices = (
            leaf.sharding.addressable_devices_indices_map(leaf.shape)
            if leaf.sharding
            else {None: ...}
        )
        indices = {str(index): index for index in devices.values()}
        reading.append({name: array.result()[index].read() for name, index in indices.items()})
    found = [_array(leaf, pieces) for (_, leaf), pieces in zip(flat, reading, strict=True)]
    return jax.tree_util.tree_unflatten(tree, found)


def _array(leaf: Any, pieces: dict[str, Any]) -> Any:
    if leaf.sharding is None:
        return pieces[str(...)].result()
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: pieces[str(index)].result()
    )


def lies_in(at: Path | Objects, path: str) -> list[str]:
    """Names the files of a checkpoint that hold an array, by searching for its bytes, as the
    database keeps no list of them."""
    names = (
        at.names()
        if isinstance(at, Objects)
        else [f.relative_to(at).as_posix() for f in at.rglob("d/*")]
    )
    wanted = _stored(at, path)
    found = list[str]()
    left = SEARCHED
    for name in [name for name in names if name.split("/")[-2:-1] == ["d"]]:
        data = (at.read(name) or b"") if isinstance(at, Objects) else (at / name).read_bytes()
        found += [name] if any(piece in data for piece in wanted) else []
        if (left := left - len(data)) < 0:
            break
    return found


def _stored(at: Path | Objects, path: str) -> list[bytes]:
    """Returns the pieces of an array as they lie in the data files of a checkpoint."""
    database = tensorstore.KvStore.open(
        _database(_base(at)), context=tensorstore.Context(NODES)
    ).result()
    prefix = f"{path.replace('/', '.')}/".encode()
    found = [
        database.read(key).result().value
        for key in database.list().result()
        if key.startswith(prefix)
    ]
    return [piece for piece in found if not piece.startswith(b"{")]


def _base(at: Path | Objects, index: int | None = None) -> dict[str, Any]:
    """Returns where the database of a process is, or that of all."""
    place = f"{STATE}/" if index is None else f"{STATE}/ocdbt.process_{index}/"
    return (
        spec(f"{at}/{place}")
        if isinstance(at, Objects)
        else {"driver": "file", "path": f"{at.resolve()}/{place}"}
    )


def _database(base: dict[str, Any]) -> dict[str, Any]:
    own = {
        "driver": "ocdbt",
        "base": base,
        "target_data_file_size": LARGEST,
        "cache_pool": "cache_pool#nodes",
    }
    return own | {f"experimental_read_coalescing_{name}": value for name, value in NEARBY.items()}


def _spec(base: dict[str, Any], path: str) -> dict[str, Any]:
    return {
        "driver": "zarr",
        "kvstore": {**_database(base), "path": f"{path.replace('/', '.')}/"},
        "metadata": {"compressor": {"id": "zstd", "level": 1}},
        "store_data_equal_to_fill_value": True,
    }
