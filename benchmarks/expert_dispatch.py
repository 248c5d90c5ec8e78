"""Estimates both ways of `mesh.expert_dispatch` for one layer of Mixtral 8x7B, by the TPU compiler.

    python -m benchmarks.expert_dispatch gather
    python -m benchmarks.expert_dispatch all_to_all

Forwards and backwards on eight chips of v5p, one expert on each, with four rows of 4096 tokens a
chip. Needs the packages of the extra `tpu-plan`, and two to ten minutes.
"""

import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

from flaxformer_lite.analysis import hlo
from flaxformer_lite.config import Execution, MeshConfig
from flaxformer_lite.contrib.plan import aot, costs, kernels, topology
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.functions.sharding import PlacedExecution
from flaxformer_lite.sharding.activations import BATCH_AXES, MeshSharding
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.sharding.parameters import path_of

CHIPS = 8
WIDTH = 4096
ROWS = 4 * CHIPS
LENGTH = 4096
LAYER = MoeConfig(mlp_dim=14336, balance=0.0, expert=MlpConfig(gated=True, activation="silu"))
BFLOAT16 = {"dtype": "bfloat16", "param_dtype": "bfloat16"}


def main(way: str) -> None:
    pod = topology.parse("v5p:2x2x2")
    mesh = build_mesh(MeshConfig(data=1, expert=CHIPS), aot.devices(pod, 1))
    sharding = MeshSharding(mesh, expert_dispatch=way)
    layer = LAYER.module(PlacedExecution(sharding=sharding, **BFLOAT16))
    x_BTD = jax.ShapeDtypeStruct(
        (ROWS, LENGTH, WIDTH), jnp.bfloat16, sharding=NamedSharding(mesh, P(BATCH_AXES))
    )
    one_row = jax.ShapeDtypeStruct((1, 8, WIDTH), jnp.bfloat16)
    on_one = LAYER.module(Execution(**BFLOAT16))
    shapes = jax.eval_shape(on_one.init, jax.random.key(0), one_row)["params"]

    def placed(keys, leaf):
        spec = P("expert") if "experts/" in path_of(keys) else P()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    def forwards_and_backwards(params, x_BTD, d_y_BTD):
        def apply(params, x_BTD):
            return layer.apply({"params": params}, x_BTD)

        y_BTD, pull = jax.vjp(apply, params, x_BTD)
        return y_BTD, pull(d_y_BTD)

    params = jax.tree_util.tree_map_with_path(placed, shapes)
    compiled = jax.jit(forwards_and_backwards).lower(params, x_BTD, x_BTD).compile()
    module = hlo.parse(compiled.as_text())
    times = kernels.seconds(module, pod.chip, causal=True)
    cost = costs.of(module, pod.chip, mesh.shape, 1, times)
    for one in cost.exchanges:
        print(f"{one.kind}: {one.bytes / 1e9:.2f} GB in {one.count}, {1e3 * one.seconds[1]:.1f} ms")
    print(f"computation {1e3 * sum(cost.parts.values()):.1f} ms")
    print(f"temporaries {compiled.memory_analysis().temp_size_in_bytes / 2**30:.1f} GiB")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main(sys.argv[1])
