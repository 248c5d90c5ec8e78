"""Tricks for XLA:CPU, each with what it gained (measured on a 2-core AMD EPYC; docs/benchmarks/README.md, "What helped").

None changes a number by more than rounding. `train.cpu_tuning` is their one switch: it becomes `tuned` of the step's
sharding, and what asks `is_single_cpu` of that sharding takes the plain form where it is False. With `tuned`, layers of one
look are also traced once, on any platform (modules/stack.py): GPT-2 124M's step 1.0 s instead of 2.4.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.functions.sharding import ActivationSharding

SLICES = 4  # of a sum of products
SMALL = 2**14  # numbers of an array


def schedule_after(done: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """`x`, but not before `done` is: forces execution order where XLA:CPU ignores optimization barriers.

    It drops the barriers, but it cannot drop the question whether a number is NaN.

    Gain: no figure of its own; `recompute_matmul` and `accumulate_product` rest on it, and chunks of logits would be made
    side by side without it.
    """
    for array in done:
        top = array.max()
        x = jnp.where(top == top, x, jnp.nan)
    return x


def recompute_matmul(make: Callable[[Any], jax.Array], inputs: Any, kernel_IO: jax.Array) -> jax.Array:
    """`make(inputs) @ kernel`; the backward pass is left the inputs alone, and makes the rest again.

    Reverse mode only. On accelerators remat says what is kept; there this rule, by the TPU compiler's estimate, made GPT-2
    XL's step 8% longer.

    Gain: temporaries of a step 1,174, then 1,028 MiB (GPT-2 124M), 796, then 652 (BERT base), in the same time.

    Args:
      make: elementwise, or as cheap: [..., I] from the inputs. What it closes over is constant.
      inputs: array, or a tree of them.
      kernel_IO: the weight, in the dtype of what is made.

    Returns:
      Array [..., O].

    Reference: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv:1604.06174), section 4.
    """
    return _recomputed(make, inputs, kernel_IO)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recomputed(make: Callable[..., Any], inputs: Any, kernel_IO: jax.Array) -> Any:
    return make(inputs) @ kernel_IO


def _forward(make: Callable[..., Any], inputs: Any, kernel_IO: jax.Array) -> tuple[Any, Any]:
    return make(inputs) @ kernel_IO, (inputs, kernel_IO)


def _backward(make: Callable[..., Any], residuals: Any, d_out: jax.Array) -> tuple[Any, Any]:
    inputs, kernel_IO = residuals
    # Late, for XLA would make it while it has the inputs at hand, and keep it.
    inputs = jax.tree.map(lambda x: schedule_after([d_out[(0,) * (d_out.ndim - 1)]], x), inputs)
    made, pull = jax.vjp(make, inputs)
    rows = tuple(range(made.ndim - 1))
    return *pull(d_out @ kernel_IO.T), jnp.tensordot(made, d_out, (rows, rows))


_recomputed.defvjp(_forward, _backward)


def accumulate_product(
    total_VD: jax.Array, a: jax.Array, x: jax.Array, product: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """`total + product(a, x)` in slices of V, as XLA:CPU adds two whole arrays into a third.

    Gain: temporaries of GPT-2 124M's step 1,321, then 1,174 MiB; its time as before or 3% less.

    Args:
      total_VD: the sum so far.
      a: [..., V].
      x: [..., D].
      product: of slices of `a` with `x`, summed over the leading axes: [slice, D].
    """
    bounds = np.linspace(0, total_VD.shape[0], min(SLICES, total_VD.shape[0]) + 1).astype(int).tolist()
    for start, stop in itertools.pairwise(bounds):
        slice_VD = total_VD[start:stop] + product(a[..., start:stop], x)
        total_VD = jax.lax.dynamic_update_slice_in_dim(total_VD, slice_VD, start, axis=0)
        x = schedule_after_sum(total_VD, x)
    return total_VD


def schedule_after_sum(total_VD: jax.Array, x: jax.Array) -> jax.Array:
    """`x`, but not before the sum is made, of which one row is read.

    It is a row that XLA cannot know: one that it knows it takes from before the sum, and copies that whole. The gain is that
    of `accumulate_product`.
    """
    row = jnp.isnan(x[(0,) * x.ndim]).astype(jnp.int32)
    return schedule_after([jax.lax.dynamic_index_in_dim(total_VD, row)], x)


def join_small(leaves: list[jax.Array]) -> list[jax.Array]:
    """The same numbers, small arrays joined into one: XLA:CPU compiles three kernels for each array whose squares it adds.

    Gain: GPT-2 124M's step has 3,601 fusions instead of 4,227 and compiles in 7.1 CPU s instead of 7.8.
    """
    small = [x.ravel() for x in leaves if x.size < SMALL]
    return [jnp.concatenate(small), *(x for x in leaves if x.size >= SMALL)] if small else leaves


def run_once_options(sharding: ActivationSharding) -> dict[str, Any] | None:
    """Compiler options for a program that runs once, as those that make a fresh state.

    Gain: they compile with LLVM's level 1, a small GPT's whole state in 2.9 CPU s instead of 4.1.
    """
    return {"xla_backend_optimization_level": 1} if sharding.tuned and sharding.platform == "cpu" else None
