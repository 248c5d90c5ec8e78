"""What is to be computed after what, for compilers that would rather not know."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from flaxformer_lite.functions.sharding import pieces, platform


def after(done: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """`x`, but not before `done` is: else XLA:CPU runs what follows side by side with it, and holds the memory of both.

    It drops optimization barriers, but it cannot drop the question whether a number is NaN.
    """
    for array in done:
        top = array.max()
        x = jnp.where(top == top, x, jnp.nan)
    return x


def alone() -> bool:
    """Whether one CPU does all the work, as far as a trainer says: a step by shard_map or pmap sees its own part alone."""
    return platform() == "cpu" and all(pieces(name).count == 1 for name in "BTV")
