"""Batches on a mesh: the rows that each process reads, placed on its devices."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from flaxformer_lite.config import ConfigError
from flaxformer_lite.sharding.activations import BATCH_AXES, num_batch_shards
from flaxformer_lite.types import Tree

BATCH = P(BATCH_AXES)


def check_batch(batch_size: int, accumulate: int, mesh: Mesh) -> None:
    """Checks that a microbatch splits evenly over the devices along BATCH_AXES."""
    ways = num_batch_shards(mesh.shape)
    unit = ways * accumulate
    if batch_size % unit:
        raise ConfigError(
            f"train.batch_size={batch_size}: {accumulate} microbatch(es) over {ways} devices"
            f" (mesh.data x mesh.fsdp x mesh.expert) need a multiple of {unit}; try"
            f" train.batch_size={-(-batch_size // unit) * unit}."
        )


def batch_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the rows of a batch that the devices of this process hold, ascending.

    If `context` or `tensor` span several processes, these processes share rows, and each reads the
    same ones.
    """
    pieces = NamedSharding(mesh, BATCH).addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[piece] for piece in pieces]))


def place_batch(batch: Tree, mesh: Mesh, batch_size: int | None = None) -> Tree:
    """Places this process's rows of a batch (numpy) as global arrays split over BATCH_AXES.

    Args:
      batch: tree of arrays with the rows of `batch_rows`; other arrays, such as a packing, have a
        part of their own for each device, in the same order.
      mesh: the devices.
      batch_size: rows of the whole batch; by default, all rows are in `batch`.
    """
    total = batch_size or len(jax.tree.leaves(batch)[0])
    read = len(batch_rows(mesh, total))
    sharding = NamedSharding(mesh, BATCH)

    def place(array):
        size = len(array) * total // read
        rows = batch_rows(mesh, size)

        def piece(index):
            start, stop, _ = index[0].indices(size)
            first = int(np.searchsorted(rows, start))
            return array[(slice(first, first + stop - start), *index[1:])]

        return jax.make_array_from_callback((size, *array.shape[1:]), sharding, piece)

    return jax.tree.map(place, batch)
