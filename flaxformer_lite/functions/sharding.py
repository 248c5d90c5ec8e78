"""The neutral anchors through which a trainer says where activations live, without the code here knowing of any mesh."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import jax

from flaxformer_lite import axes

Names = tuple[str, ...]


class Pieces(NamedTuple):
    """Into how many pieces an axis is split, and what `jax.lax`'s collectives call the axis of the mesh that does it."""

    count: int
    mesh_axis: str | Names


class Binding(Protocol):
    """What a trainer makes of logical axis names (the names of axes.py).

    Attributes:
      platform: of the devices that the step is for, such as "tpu"; jax's default backend may be another.
    """

    platform: str

    def constrain(self, x: jax.Array, names: Names) -> jax.Array:
        """`x`, where the trainer wants it."""

    def pieces(self, name: str) -> Pieces:
        """How the axis of this name is split."""

    def per_shard(
        self, function: Callable, arrays: list[jax.Array], names: list[Names], output: Any, over: Names | None
    ) -> Any:
        """`function(*arrays)` on each device's parts; see the function of the same name."""


_binding: ContextVar[Binding | None] = ContextVar("flaxformer_lite_sharding", default=None)


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
    names = _names("shard_act", letters)
    if len(letters) != x.ndim:
        raise ValueError(
            f"shard_act letters={letters!r}: {len(letters)} letters for an array of shape {x.shape};"
            f" give one letter an axis."
        )
    binding = _binding.get()
    return x if binding is None else binding.constrain(x, names)


def per_shard(
    function: Callable[..., Any], inputs: Sequence[Any], output: Any, *, over: str | None = None
) -> Callable[..., Any]:
    """A pure function run by each device on its own parts of the arrays, as fused kernels need it (`jax.shard_map`).

        attend = per_shard(kernel, ("BTNH", "BSKH", "BSKH", "B"), "BTNH")
        out_BTNH = attend(q_BTNH, k_BSKH, v_BSKH, mask)

    Parts are those of `shard_act`. What one array cannot be divided into, no array is (query heads that split while key
    heads do not would meet the wrong ones); an axis of one stands for all, and stays whole alone.

    Args:
      function: sees no binding while it runs. What it closes over must be whole on every device: pass arrays as arguments.
      inputs: for each argument the letters of its leading axes, or a tree of them; `""`: every device has it whole.
      output: the letters of the result, or a tree of them.
      over: letters whose axes are split by hand; the compiler keeps the others split behind the function's back, which
        then sees them whole. None splits all.

    Returns:
      A function of as many arguments as `inputs`; each may be a tree or None. Without a binding, `function` itself.
    """
    binding = _binding.get()
    if binding is None:
        return function
    out = jax.tree.map(lambda letters: _names("per_shard", letters), output)

    def apply(*arguments):
        leaves, tree = jax.tree.flatten(arguments)
        names = [
            _names("per_shard", letters) for letters in jax.tree.leaves(jax.tree.broadcast(tuple(inputs), arguments))
        ]

        def on_leaves(*leaves):
            with bind(None):
                return function(*tree.unflatten(leaves))

        return binding.per_shard(on_leaves, leaves, names, out, None if over is None else _names("per_shard", over))

    return apply


def pieces(letter: str) -> Pieces:
    """How the axis of this letter is split: into one piece, unless a trainer has bound more."""
    binding = _binding.get()
    return Pieces(1, ()) if binding is None else binding.pieces(*_names("pieces", letter))


def bound() -> bool:
    """Whether a trainer is tracing."""
    return _binding.get() is not None


def platform() -> str:
    """Of the devices that this is traced for: those of the trainer's mesh, else jax's default backend."""
    binding = _binding.get()
    return jax.default_backend() if binding is None else binding.platform


@contextmanager
def bind(binding: Binding | None) -> Iterator[None]:
    """Within the block the anchors of this file are the binding's; None: they do nothing.

    jit does not look at this context, so it belongs *inside* the function that is jitted: a new binding is then a new
    function, hence a new trace.
    """
    token = _binding.set(binding)
    try:
        yield
    finally:
        _binding.reset(token)


def _names(where: str, letters: str) -> Names:
    unknown = [letter for letter in letters if letter not in axes.AXES]
    if unknown:
        raise ValueError(f"{where} letters={letters!r}: no axis {unknown[0]!r}; choose from {''.join(axes.AXES)}.")
    return axes.names(letters)
