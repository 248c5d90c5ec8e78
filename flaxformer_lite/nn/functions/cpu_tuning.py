"""Optimizations for XLA:CPU, each with its gain (on a 2-core AMD EPYC; docs/benchmarks/README.md).

None changes a number by more than rounding. `train.cpu_tuning` switches all of them: it sets
`tuned` on the sharding of the step, and callers use the plain form where `is_single_cpu` of that
sharding is False. With `tuned`, identical layers are also traced once, on any platform
(nn/modules/stack.py): tracing the step of GPT-2 124M takes 1.0 s instead of 2.4.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.types import Tree

SLICES = 4  # slices of a sum of products
SMALL = 2**14  # size of a small array
THREEFRY_PARITY = np.uint32(0x1BD11BDA)
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # bits, in alternating groups of four rounds


def schedule_after(done: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """Returns `x` once `done` is computed.

    XLA:CPU drops barriers, but it cannot drop a test whether a number is NaN.

    Gain: no figure of its own; `recompute_matmul` and `accumulate_product` rely on it, and without
    it all chunks of logits would exist at once.
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
    *,
    product: Callable[[jax.Array, jax.Array], jax.Array] = jnp.matmul,
) -> jax.Array:
    """Computes `tensordot(make(inputs), kernel, summed)` of two matrices.

    With `make`, see `recompute_matmul`; otherwise `product` multiplies, such as `matmul`.

    XLA:CPU multiplies a transposed matrix as it is, but copies arrays with more axes to transpose
    them: weights before the forward pass, gradients in strides of a row, which takes as long as the
    product. Not for meshes: the TPU compiler gathers sharded weights of this form twice in the
    backward pass.

    Gain: 108 MiB of copies in a step of GPT-2 124M for the weights; for the gradients, T5-small's
    step takes 2.65 user CPU s instead of 3.60 (a sixth of that is `repeat`'s), BERT base's 3.54
    instead of 4.03.
    """
    fan_in = math.prod(kernel.shape[:summed])
    rows = jax.tree.leaves(inputs)[0].shape[:-summed]

    def flat(x: jax.Array) -> jax.Array:
        return x.reshape(-1, fan_in)

    kernel_IO = kernel.reshape(fan_in, -1)
    if make is None:
        y = product(flat(inputs), kernel_IO)
    else:
        y = recompute_matmul(lambda x: flat(make(x)), inputs, kernel_IO)
    return y.reshape(*rows, *kernel.shape[summed:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def repeat(x: jax.Array, times: int) -> jax.Array:
    """Repeats x [1, ...] along its first axis.

    The gradient is a sum of slices, unless they are small. Reverse mode only.

    Gain: XLA:CPU sums eight rows of half a million numbers in 28 ms of CPU, and adds them as slices
    in 1 ms.
    """
    return jnp.broadcast_to(x, (times, *x.shape[1:]))


def _sum_slices(times: int, _: None, d_y: jax.Array) -> tuple[jax.Array]:
    if d_y[0].size < SMALL:
        return (d_y.sum(axis=0, keepdims=True),)
    return (functools.reduce(jax.lax.add, jnp.split(d_y, times)),)


repeat.defvjp(lambda x, times: (repeat(x, times), None), _sum_slices)


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
        np.linspace(0, total_VD.shape[0], min(SLICES, total_VD.shape[0]) + 1).astype(int).tolist()
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


def concat_small(leaves: list[jax.Array]) -> list[jax.Array]:
    """Concatenates the small arrays into one.

    XLA:CPU compiles three kernels for each array in a sum of squares.

    Gain: GPT-2 124M's step has 3,601 fusions instead of 4,227 and compiles in 7.1 CPU s instead of
    7.8.
    """
    small = [x.ravel() for x in leaves if x.size < SMALL]
    if not small:
        return leaves
    large = [x for x in leaves if x.size >= SMALL]
    return [jnp.concatenate(small), *large]


def run_once_options(sharding: ActivationSharding) -> dict[str, int] | None:
    """Returns compiler options for programs that run once, such as those that initialize a state.

    Gain: at LLVM's level 1 the whole state of a small GPT compiles in 2.9 CPU s instead of 4.1.
    """
    if sharding.tuned and sharding.platform == "cpu":
        return {"xla_backend_optimization_level": 1}
    return None


def bernoulli(
    key: jax.Array, p: float, shape: tuple[int, ...], sharding: ActivationSharding
) -> jax.Array:
    """Draws `jax.random.bernoulli(key, p, shape)`, the same numbers in one kernel.

    On a CPU, JAX computes the rounds of Threefry in a loop that writes all numbers to memory and
    copies them in each pass, to compile sooner.

    Gain: 0.06 instead of 0.28 CPU ms for 61,440 numbers; the step of a BERT of two layers of width
    128 takes 8% less. Blockwise attention with dropout, forward and backward over 4,096 x 4,096 by
    four heads of 32, takes 0.99 instead of 1.78 user CPU s.

    Reference: Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3, section 4.
    """
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
