"""Where activations live: the neutral answer, everything whole on one device, and the interface that meshes implement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from flaxformer_lite import axes

Names = tuple[str, ...]


class Shards(NamedTuple):
    """How many shards an axis is split into, and what `jax.lax`'s collectives call the axis of the mesh that splits it."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    mesh_axis: str | Names


@dataclass(frozen=True)
class ActivationSharding:
    """Everything whole on one device. A value that functions are handed, hashable, so that jit tells one from another.

    Attributes:
      tuned: whether the tricks of functions/cpu_tuning.py may be used.
    """

    tuned: bool = field(default=False, kw_only=True)

    @property
    def platform(self) -> str:
        """Of the devices that the program is for, such as "tpu"; on a mesh jax's default backend may be another."""
        return jax.default_backend()

    @property
    def is_single_cpu(self) -> bool:
        """Whether one CPU does all the work and its tricks are wanted."""
        return self.tuned and self.platform == "cpu" and all(self.num_shards(letter).count == 1 for letter in "BTV")

    def constrain(self, x: jax.Array, letters: str) -> jax.Array:
        """`x`, placed on the devices as its axes ask; here the identity.

        Args:
          x: any array.
          letters: one letter of `flaxformer_lite.axes` an axis, such as `'BTD'`.

        Raises:
          ValueError: a letter that is not in the dimension key, or not one letter an axis.
        """
        check_letters("constrain", letters, x.shape)
        return x

    def num_shards(self, letter: str) -> Shards:
        """How the axis of this letter is split; here into one shard."""
        check_letters("num_shards", letter)
        return Shards(1, ())

    def per_shard(
        self, function: Callable[..., Any], inputs: Sequence[Any], output: Any, *, over: str | None = None
    ) -> Callable[..., Any]:
        """A pure function run by each device on its own shards of the arrays, as fused kernels need it (`jax.shard_map`).

            attend = sharding.per_shard(kernel, ("BTNH", "BSKH", "BSKH", "B"), "BTNH")
            out_BTNH = attend(q_BTNH, k_BSKH, v_BSKH, mask)

        Shards are those of `constrain`. What one array cannot be divided into, no array is (query heads that split while
        key heads do not would meet the wrong ones); an axis of one stands for all, and stays whole alone.

        Args:
          function: hands on `inside_shard()`, not this. What it closes over must be whole on every device: pass arrays as
            arguments.
          inputs: for each argument the letters of its leading axes, or a tree of them; `""`: every device has it whole.
          output: the letters of the result, or a tree of them.
          over: letters whose axes are split by hand; the compiler keeps the others split behind the function's back, which
            then sees them whole. None splits all.

        Returns:
          A function of as many arguments as `inputs`; each may be a tree or None. Here `function` itself.
        """
        return function

    def inside_shard(self) -> "ActivationSharding":
        """The sharding that a function run by `per_shard` sees: everything whole, on the same platform."""
        return self


def check_letters(caller: str, letters: str, shape: tuple[int, ...] | None = None) -> Names:
    """The names of axes.py for the letters.

    Raises:
      ValueError: an unknown letter, or not one letter an axis where a shape is given.
    """
    unknown = [letter for letter in letters if letter not in axes.AXES]
    if unknown:
        raise ValueError(f"{caller} letters={letters!r}: no axis {unknown[0]!r}; choose from {''.join(axes.AXES)}.")
    if shape is not None and len(letters) != len(shape):
        raise ValueError(
            f"{caller} letters={letters!r}: {len(letters)} letters for an array of shape {shape}; give one letter an axis."
        )
    return axes.names(letters)


UNSHARDED = ActivationSharding()
