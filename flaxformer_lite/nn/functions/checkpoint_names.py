"""Names of results that rematerialization may keep for the backward pass."""

from typing import overload

import jax
from jax.ad_checkpoint import checkpoint_name

ATTENTION = "attention"  # the heads' output, with the log-sums that a kernel's backward pass reads
QKV = "qkv"  # queries, keys and values, rotated
OUT = "out"  # attention's output projection
MLP = "mlp"  # the inputs of the activation, and of its gate


@overload
def named(name: str, x: jax.Array, /) -> jax.Array: ...


@overload
def named(name: str, x: jax.Array, y: jax.Array, /, *more: jax.Array) -> tuple[jax.Array, ...]: ...


def named(name: str, *arrays: jax.Array) -> jax.Array | tuple[jax.Array, ...]:
    """Names arrays for the policies of `model.remat`, and changes nothing else.

    The policies (nn/modules/stack.py) keep arrays by name.

    Returns:
      A tuple, or the one array.
    """
    if len(arrays) == 1:
        return checkpoint_name(arrays[0], name)
    return tuple(checkpoint_name(x, name) for x in arrays)
