"""Optimizations for the TPU compiler; none changes the result.

Each states its gain, as that compiler estimates it (docs/plan.md).
"""

import os
import re

import jax

from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.types import Tree

# kinds of devices
V5P = ("TPU v5", "TPU v5p")
V5E = ("TPU v5 lite", "TPU v5e")
BEFORE_V5 = ("TPU v2", "TPU v3", "TPU v4")
V6E = ("TPU v6 lite", "TPU v6e")
# width of a TPU's vector unit: a narrower last axis is padded to it, in memory and in products
LANES = 128
# Key in a kernel's metadata: how often a step of its grid takes each of its forms, a list in JSON.
FORMS = "forms"
# Gathers weights while products compute, as the compiler does by default for v5e but
# not for others. Gain: 1.45 s of the 27.06 that Llama 70B's step takes with no traffic hidden.
GATHERS_ASIDE = {
    "xla_enable_async_all_gather": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
}
# On-chip memory, in KiB, that one operation may fill. With the compiler's own limit products wait
# for memory. Gain, as scheduled: Llama 7B on v5e from 6.02 s to 5.61 and on v5p from 10.64 s to
# 9.66, and Llama 3 8B on v6e from 4.17 s with 64 MiB to 3.90. Compiling takes twice as long; for
# v5e, with 64 MiB, it did not end.
SCOPED_MEMORY = "xla_tpu_scoped_vmem_limit_kib"
OPTIONS: dict[str, dict[str, bool | int]] = {
    **{kind: {**GATHERS_ASIDE, SCOPED_MEMORY: 32 * 1024} for kind in V5P + V5E},
    **{kind: {**GATHERS_ASIDE, SCOPED_MEMORY: 96 * 1024} for kind in V6E},
}


def compiler_options(device_kind: str) -> dict[str, bool | int] | None:
    """Returns the compiler's options for a step on this kind of device.

    Options that LIBTPU_INIT_ARGS sets are left out.
    """
    if device_kind not in OPTIONS:
        return None
    given = re.findall(r"--(\w+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    return {name: value for name, value in OPTIONS[device_kind].items() if name not in given}


def materialize(arrays: Tree, sharding: ActivationSharding, *, value: bool = True) -> Tree:
    """Makes a v5p compute a tree of arrays and its gradient once.

    It would otherwise compute them inside every matrix product that reads them.

    The compiler fuses cheap arithmetic into the products before and after it. On v5p that slows
    them by more than the arrays cost; on v5e, whose memory is slower, by less, so that other chips
    than v5p are left alone.

    Args:
      arrays: returned unchanged for other chips.
      sharding: where activations live; its `device_kind` is that of the program.
      value: False leaves the arrays alone, and holds only their gradient.
    """
    if sharding.device_kind not in V5P:
        return arrays
    if value:
        return jax.lax.optimization_barrier(arrays)
    return materialize_gradient(arrays)


@jax.custom_jvp
def materialize_gradient(arrays: Tree) -> Tree:
    """Returns a tree of arrays whose gradients are computed once.

    They would otherwise be computed in every matrix product that reads them.

    The TPU compiler fuses the gradient of a gated activation into both products, of inputs and of
    weights. Gain: held as arrays, it makes the step of Llama 7B 6% shorter.
    """
    return arrays


@materialize_gradient.defjvp
def _(primals: tuple[Tree], tangents: tuple[Tree]) -> tuple[Tree, Tree]:
    return primals[0], jax.lax.optimization_barrier(tangents[0])
