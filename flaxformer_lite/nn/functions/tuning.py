"""All tuning for kinds of devices, of which device_ops.py makes the operations that layers ask for.

None of it changes a number by more than rounding. Each optimization states its gain: on CPUs
measured on a 2-core AMD EPYC (docs/benchmarks/README.md), for TPUs as their compiler estimates it
(docs/plan.md). `train.cpu_tuning` switches those of CPUs: it sets `tuned` on the sharding of the
step. Which attention a device computes is chosen in nn/attentions/dispatch.py.
"""

import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.types import Tree

FEW_ROWS = 64  # fewer rows are multiplied from the right
SUM_SLICES = 4  # slices of a sum of products
# The parity constant of the key schedule of Skein, which JAX's Threefry has, too.
THREEFRY_PARITY = np.uint32(0x1BD11BDA)
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # bits, in alternating groups of four rounds

# Kinds of devices.
# JAX calls a v5p "TPU v5", and a v5e "TPU v5 lite".
V5P = ("TPU v5", "TPU v5p")
V5E = ("TPU v5 lite", "TPU v5e")
V6E = ("TPU v6 lite", "TPU v6e")
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


def compute_once(arrays: Tree, sharding: ActivationSharding) -> Tree:
    """Returns arrays that are computed once, and so is their gradient.

    XLA for v5p would otherwise compute them inside every matrix product that reads them: it fuses
    cheap arithmetic into the products before and after it, which slows them by more than the arrays
    cost. On v5e, whose memory is slower, it costs less, so that other chips are left alone.

    Args:
      arrays: returned unchanged for other chips.
      sharding: where activations live.
    """
    if sharding.device_kind not in V5P:
        return arrays
    return jax.lax.optimization_barrier(arrays)


def compute_gradient_once(arrays: Tree, sharding: ActivationSharding) -> Tree:
    """Returns arrays whose gradient alone is computed once, for the reason of `compute_once`."""
    if sharding.device_kind not in V5P:
        return arrays
    return hold_gradient(arrays)


@jax.custom_jvp
def hold_gradient(arrays: Tree) -> Tree:
    """Returns a tree of arrays whose gradients are computed once, on every kind of device.

    The TPU compiler fuses the gradient of a gated activation into both products, of inputs and of
    weights. Gain: held as arrays, it makes the step of Llama 7B 6% shorter.
    """
    return arrays


@hold_gradient.defjvp
def _(primals: tuple[Tree], tangents: tuple[Tree]) -> tuple[Tree, Tree]:
    return primals[0], jax.lax.optimization_barrier(tangents[0])


@functools.cache
def has_integer_tiles() -> bool:
    """Returns whether this CPU multiplies tiles of int8 (Intel's AMX), as far as Linux says.

    On others, products of int8 are not known to be faster than products of dequantized matrices.
    """
    try:
        return "amx_int8" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False


def multiply_turned(x_RI: jax.Array, kernel_OI: jax.Array) -> jax.Array:
    """Computes `x @ kernel.T`, of a matrix whose inputs are its longer axis.

    Gain: XLA:CPU multiplies one row by a matrix in passes over several rows of the matrix, which
    are the faster the longer they are: it reads [1536, 576] at 13.9 GB a CPU second, and
    [576, 1536] at 19.2. With eight rows it is 5.1 and 9.6 (AMD EPYC, jax 0.10.2).
    """
    if len(x_RI) > FEW_ROWS:
        return x_RI @ kernel_OI.T
    # The barrier keeps XLA from turning the product around.
    if len(x_RI) == 1:
        return jax.lax.optimization_barrier(kernel_OI @ x_RI[0])[None]
    return jax.lax.optimization_barrier(kernel_OI @ x_RI.T).T


def schedule_after(done: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """Returns `x` once `done` is computed.

    XLA:CPU drops barriers, but it cannot drop a test whether a number is NaN.

    Gain: the step of configs/gpt2_tiny.py takes 285 instead of 325 CPU ms and 131 instead of 223
    MiB, t5_tiny's 288 instead of 302 ms and 148 instead of 202 MiB. `recompute_matmul` and
    `accumulate_product` rely on it.
    """
    for array in done:
        top = array.max()
        x = jnp.where(top == top, x, jnp.nan)
    return x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def recompute_matmul(
    make: Callable[[Tree], jax.Array], inputs: Tree, kernel_IO: jax.Array
) -> jax.Array:
    """Computes `make(inputs) @ kernel` [..., O], keeping only the inputs.

    The rest is recomputed in the backward pass.

    Reverse mode only. On accelerators, remat decides what is kept; this rule made GPT-2 XL's step
    8% longer there, by the TPU compiler's estimate.

    Gain: temporaries of a step fell from 1,174 to 1,028 MiB (GPT-2 124M) and from 796 to 652 (BERT
    base), in the same time.

    Args:
      make: elementwise or equally cheap function from the inputs to [..., I]. Anything it closes
        over is constant.
      inputs: an array or a tree of arrays.
      kernel_IO: the weight, in the dtype that `make` returns.

    Reference: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv:1604.06174),
    section 4.
    """
    return make(inputs) @ kernel_IO


def _forward(
    make: Callable[[Tree], jax.Array], inputs: Tree, kernel_IO: jax.Array
) -> tuple[jax.Array, tuple[Tree, jax.Array]]:
    return make(inputs) @ kernel_IO, (inputs, kernel_IO)


def _backward(
    make: Callable[[Tree], jax.Array], residuals: tuple[Tree, jax.Array], d_out: jax.Array
) -> tuple[Tree, jax.Array]:
    inputs, kernel_IO = residuals
    # Delayed, or XLA would compute it while it has the inputs at hand, and keep it.
    inputs = jax.tree.map(lambda x: schedule_after([d_out[(0,) * (d_out.ndim - 1)]], x), inputs)
    made, pull = jax.vjp(make, inputs)
    flat_RI = made.reshape(-1, made.shape[-1])
    flat_RO = d_out.reshape(-1, d_out.shape[-1])
    return *pull(d_out @ kernel_IO.T), kernel_gradient(flat_RI, flat_RO)


recompute_matmul.defvjp(_forward, _backward)


def kernel_gradient(x_RI: jax.Array, d_RO: jax.Array) -> jax.Array:
    """Computes `x.T @ d`, after a transposition of the narrower of the two.

    XLA:CPU has no fast product that sums over the first axes of both matrices: it leaves it to
    Eigen, which copies one of them number by number. The barrier keeps XLA from merging the
    transposition into the product again.

    Gain: 0.39 instead of 0.68 CPU ms for 480 rows, 512 x 128, and 45 instead of 55 for 2,048 rows,
    3,072 x 768.
    """
    if x_RI.shape[1] <= d_RO.shape[1]:
        return jax.lax.optimization_barrier(x_RI.T) @ d_RO
    return jax.lax.optimization_barrier(jax.lax.optimization_barrier(d_RO.T) @ x_RI).T


@jax.custom_vjp
def matmul(x_RI: jax.Array, kernel_IO: jax.Array) -> jax.Array:
    """Computes `x @ kernel`, with the gradient of `kernel_gradient`. Reverse mode only."""
    return x_RI @ kernel_IO


def _matmul_forward(
    x_RI: jax.Array, kernel_IO: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x_RI @ kernel_IO, (x_RI, kernel_IO)


def _matmul_backward(
    residuals: tuple[jax.Array, jax.Array], d_RO: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x_RI, kernel_IO = residuals
    return d_RO @ kernel_IO.T, kernel_gradient(x_RI, d_RO)


matmul.defvjp(_matmul_forward, _matmul_backward)


def matmul_of_matrices(
    inputs: Any,
    kernel: jax.Array,
    summed: int,
    make: Callable[[Any], jax.Array] | None = None,
) -> jax.Array:
    """Computes `tensordot(make(inputs), kernel, summed)` of two matrices.

    With `make`, see `recompute_matmul`.

    XLA:CPU multiplies a transposed matrix as it is, but copies arrays with more axes to transpose
    them: weights before the forward pass, gradients in strides of a row, which takes as long as the
    product. Not for meshes: the TPU compiler gathers sharded weights of this form twice in the
    backward pass.

    Gain: 108 MiB of copies in a step of GPT-2 124M for the weights; for the gradients, T5-small's
    step takes 2.81 user CPU s instead of 3.60, BERT base's 3.54 instead of 4.03.
    """
    fan_in = math.prod(kernel.shape[:summed])
    rows = jax.tree.leaves(inputs)[0].shape[:-summed]

    def flat(x: jax.Array) -> jax.Array:
        return x.reshape(-1, fan_in)

    kernel_IO = kernel.reshape(fan_in, -1)
    if make is None:
        y = matmul(flat(inputs), kernel_IO)
    else:
        y = recompute_matmul(lambda x: flat(make(x)), inputs, kernel_IO)
    return y.reshape(*rows, *kernel.shape[summed:])


def accumulate_product(
    total_VD: jax.Array,
    a: jax.Array,
    x: jax.Array,
    product: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """Computes `total + product(a, x)` in slices of V.

    XLA:CPU would add two whole arrays into a third.

    Gain: temporaries of GPT-2 124M's step fell from 1,321 to 1,174 MiB; its time is equal or 3%
    less.

    Args:
      total_VD: the sum so far.
      a: [..., V].
      x: [..., D].
      product: multiplies a slice of `a` with `x`, summed over the leading axes: [slice, D].
    """
    bounds = (
        np.linspace(0, total_VD.shape[0], min(SUM_SLICES, total_VD.shape[0]) + 1)
        .astype(int)
        .tolist()
    )
    for start, stop in itertools.pairwise(bounds):
        slice_VD = total_VD[start:stop] + product(a[..., start:stop], x)
        total_VD = jax.lax.dynamic_update_slice_in_dim(total_VD, slice_VD, start, axis=0)
        x = schedule_after_sum(total_VD, x)
    return total_VD


def schedule_after_sum(total_VD: jax.Array, x: jax.Array) -> jax.Array:
    """Returns `x`, to be computed only after the sum, by a dependency on one row of the sum.

    The row's number is hidden from XLA, which would read a known row before the sum and copy the
    whole array to do so.
    """
    row = jnp.isnan(x[(0,) * x.ndim]).astype(jnp.int32)
    return schedule_after([jax.lax.dynamic_index_in_dim(total_VD, row)], x)


def bernoulli(
    key: jax.Array, p: float, shape: tuple[int, ...], sharding: ActivationSharding
) -> jax.Array:
    """Draws `jax.random.bernoulli(key, p, shape)`, the same numbers in one kernel.

    On a CPU, JAX computes the rounds of Threefry in a loop that writes all numbers to memory and
    copies them in each pass, to compile sooner.

    Gain: 0.06 instead of 0.28 CPU ms for 61,440 numbers; with dropout of 0.1, as pages of
    fine-tuning have it, the step of gpt2_tiny takes 6% less, bert_tiny's 10% and t5_tiny's 18%.
    Blockwise attention with dropout, forward and backward over 4,096 x 4,096 by four heads of 32,
    takes 0.99 instead of 1.78 user CPU s.

    Reference: Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3, section 4.
    """
    # The formula below has JAX's default numbers only: another generator, layout of counters or
    # precision draws others, and from 2^32 numbers on JAX counts in two words.
    is_jax_default = (
        str(jax.random.key_impl(key)) == "threefry2x32"
        and jax.threefry_partitionable.value
        and jnp.result_type(float) == jnp.float32
        and math.prod(shape) < 2**32
    )
    if not (sharding.is_single_cpu and is_jax_default):
        return jax.random.bernoulli(key, p, shape)
    words = jax.random.key_data(key)
    keys = words[0], words[1], words[0] ^ words[1] ^ THREEFRY_PARITY
    low = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + keys[1]
    high = jnp.broadcast_to(keys[0], shape)
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            high = high + low
            low = high ^ _rotate(low, distance)
        high = high + keys[(group + 1) % 3]
        low = low + keys[(group + 2) % 3] + np.uint32(group + 1)
    # jax.random.uniform keeps the first 23 bits and multiplies by 2 ** -23, which is exact.
    bound = math.ceil(float(np.float32(p)) * 2**23)
    return ((high ^ low) >> np.uint32(9)) < np.uint32(bound)


def _rotate(x: jax.Array, distance: int) -> jax.Array:
    return (x << np.uint32(distance)) | (x >> np.uint32(32 - distance))
