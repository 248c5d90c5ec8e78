"""Devices: the mesh, where weights, batches and activations live on it, and the jit of steps over it."""

from flaxformer_lite.sharding.activations import MESH_AXES, LocalSharding, MeshSharding, axis_size
from flaxformer_lite.sharding.batches import BATCH, batch_rows, check_batch, place_batch
from flaxformer_lite.sharding.jit import DATA, init_state, jit_eval, jit_step
from flaxformer_lite.sharding.mesh import build_mesh, mesh_sizes
from flaxformer_lite.sharding.parameters import Replicated, param_specs, path_of, replicated, state_shardings

__all__ = [
    "BATCH", "DATA", "MESH_AXES", "LocalSharding", "MeshSharding", "Replicated", "axis_size", "batch_rows", "build_mesh",
    "check_batch", "init_state", "jit_eval", "jit_step", "mesh_sizes", "param_specs", "path_of", "place_batch", "replicated",
    "state_shardings",
]  # fmt: skip
