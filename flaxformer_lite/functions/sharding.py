"""The neutral anchor through which a trainer says where activations live, without the code here knowing of any mesh."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from flaxformer_lite import axes

Binding = Callable[[jax.Array, tuple[str, ...]], jax.Array]

_binding: ContextVar[Binding | None] = ContextVar("flaxformer_lite_shard_act", default=None)


def shard_act(x: jax.Array, letters: str) -> jax.Array:
    """Names the axes of an activation; the identity unless a trainer has bound a meaning to the names.

    Args:
      x: any array.
      letters: one letter of `flaxformer_lite.axes` an axis, such as `'BTD'`.

    Returns:
      `x`, or what the binding makes of `x` and its logical names (a sharding constraint).

    Raises:
      ValueError: a letter that is not in the dimension key, or not one letter an axis.
    """
    unknown = [letter for letter in letters if letter not in axes.AXES]
    if unknown:
        raise ValueError(f"shard_act letters={letters!r}: no axis {unknown[0]!r}; choose from {''.join(axes.AXES)}.")
    if len(letters) != x.ndim:
        raise ValueError(f"shard_act letters={letters!r}: {len(letters)} letters for an array of shape {x.shape};"
                         f" give one letter an axis.")
    binding = _binding.get()
    return x if binding is None else binding(x, axes.names(letters))


@contextmanager
def bind(binding: Binding) -> Iterator[None]:
    """Within the block `shard_act(x, letters)` is `binding(x, logical_names)`.

    jit does not look at this context, so it belongs *inside* the function that is jitted: a new binding is then a new
    function, hence a new trace.
    """
    token = _binding.set(binding)
    try:
        yield
    finally:
        _binding.reset(token)
