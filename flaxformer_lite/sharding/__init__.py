"""The mesh of devices, the placement of weights, batches and activations, and the jit of steps."""

# ruff: noqa: F401

from flaxformer_lite.sharding.activations import (
    DATA,
    MESH_AXES,
    LocalSharding,
    MeshSharding,
    axis_size,
    num_batch_shards,
)
from flaxformer_lite.sharding.batches import BATCH, batch_rows, check_batch, place_batch
from flaxformer_lite.sharding.jit import Jitted, jit_eval, jit_step
from flaxformer_lite.sharding.mesh import build_mesh, mesh_sizes
from flaxformer_lite.sharding.parameters import (
    GatheringSharding,
    Replicated,
    list_replicated,
    param_specs,
    path_of,
    state_shardings,
)
