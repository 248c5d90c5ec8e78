"""The placement of activations: the interface that meshes implement, and its default.

The default keeps everything whole on one device.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

import jax

from flaxformer_lite import axes
from flaxformer_lite.config import Execution
from flaxformer_lite.config.parts import AdapterConfig

Names = tuple[str, ...]
# the letters of an array's leading axes, or those of each array in a container
Letters: TypeAlias = "str | tuple[Letters, ...] | Mapping[str, Letters]"
Result = TypeVar("Result")


class Shards(NamedTuple):
    """The number of shards of an axis, and the name of the mesh axis for collectives."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    mesh_axis: str | Names


@dataclass(frozen=True)
class ActivationSharding:
    """A placement of activations.

    The base class keeps everything whole on one device. Hashable, as a static argument.

    Attributes:
      tuned: whether programs have the optimizations of one CPU in nn/functions/tuning.py, and
        identical layers are traced once.
      context_attention: how attention reads lengths that are split, out of
        `choices.CONTEXT_ATTENTIONS`.
      expert_dispatch: how tokens meet the experts of other devices, out of
        `choices.EXPERT_DISPATCHES`.
    """

    tuned: bool = field(default=False, kw_only=True)
    context_attention: str = field(default="gather", kw_only=True)
    expert_dispatch: str = field(default="gather", kw_only=True)

    @property
    def platform(self) -> str:
        """The platform that the program is for, such as "tpu".

        On a mesh it may differ from jax's default backend.
        """
        return jax.default_backend()

    @property
    def device_kind(self) -> str:
        """The kind of device that the program is for, such as "TPU v5"."""
        return jax.devices()[0].device_kind

    @functools.cached_property  # asked by every product of a traced step
    def is_single_cpu(self) -> bool:
        """Whether one CPU does all the work and its optimizations are switched on."""
        if not self.tuned or self.platform != "cpu":
            return False
        return all(self.num_shards(letter).count == 1 for letter in "BTV")

    @property
    def traces_layers_once(self) -> bool:
        """Whether identical layers of a stack are traced once, on any platform.

        Gain: tracing the step of GPT-2 124M takes 1.0 s instead of 2.4; the first answer of a Llama
        of 30 layers 2 CPU s less of 9.
        """
        return self.tuned

    def with_tuning(self) -> "ActivationSharding":
        """Returns the same placement, for programs that nobody looks into."""
        return dataclasses.replace(self, tuned=True)

    def without_tuning(self) -> "ActivationSharding":
        """Returns the same placement, for programs that are read layer by layer."""
        return dataclasses.replace(self, tuned=False)

    def constrain(self, x: jax.Array, letters: str) -> jax.Array:
        """Places `x` on the devices by its axes; here the identity.

        Args:
          x: any array.
          letters: one letter of `flaxformer_lite.axes` for each axis, such as `'BTD'`.

        Raises:
          ValueError: an unknown letter, or not one letter for each axis.
        """
        check_letters("constrain", letters, x.shape)
        return x

    def gather_weight(self, weight: jax.Array, path: str) -> jax.Array:
        """Gathers a weight over the axes that split it between its uses only; here the identity.

        Args:
          weight: the weight, as it is multiplied.
          path: its path in the tree of parameters.
        """
        return weight

    def num_shards(self, letter: str) -> Shards:
        """Returns how the axis of this letter is split; here into one shard."""
        check_letters("num_shards", letter)
        return Shards(1, ())

    def per_shard(
        self,
        function: Callable[..., Result],
        inputs: Sequence[Letters],
        output: Letters,
        *,
        over: str | None = None,
    ) -> Callable[..., Result]:
        """Wraps a pure function to run on each device's own shards (`jax.shard_map`).

        Fused kernels require this.

            attend = sharding.per_shard(kernel, ("BTNH", "BSKH", "BSKH", "B"), "BTNH")
            out_BTNH = attend(q_BTNH, k_BSKH, v_BSKH, mask)

        The shards are those of `constrain`. If one array cannot be split along an axis, none is
        (query heads split without their key heads would meet the wrong ones); only an axis of size
        one, which broadcasts, stays whole by itself.

        Args:
          function: must pass on `inside_shard()`, not this sharding. Pass arrays as arguments:
            anything that it closes over must be whole on every device.
          inputs: for each argument the letters of its leading axes, or a tree of them; `""` keeps
            it whole everywhere.
          output: the letters of the result, or a tree of them.
          over: letters of the axes to split by hand; the function sees the others whole, and the
            compiler splits them. None splits all by hand.

        Returns:
          A function with one argument per entry of `inputs`; each may be a tree or None. Here
          `function` itself.
        """
        return function

    def over_heads(self) -> "ActivationSharding":
        """Returns the same sharding with lengths whole and heads split over their devices, too."""
        return self

    def inside_shard(self) -> "ActivationSharding":
        """Returns the sharding inside `per_shard`: everything whole, on the same platform."""
        return self


def check_letters(caller: str, letters: str, shape: tuple[int, ...] | None = None) -> Names:
    """Returns the names in axes.py of the letters, checked.

    If a shape is given, there must be one letter per axis.
    """
    names = _names_of(caller, letters)
    if shape is not None and len(letters) != len(shape):
        raise ValueError(
            f"{caller} letters={letters!r}: {len(letters)} letters for an array of shape {shape};"
            " give one letter per axis."
        )
    return names


@functools.cache
def _names_of(caller: str, letters: str) -> Names:
    unknown = [letter for letter in letters if letter not in axes.AXES]
    if unknown:
        raise ValueError(
            f"{caller} letters={letters!r}: no axis {unknown[0]!r}; choose from"
            f" {''.join(axes.AXES)}."
        )
    return tuple(axes.AXES[letter].name for letter in letters)


UNSHARDED = ActivationSharding()


@dataclass(frozen=True, kw_only=True)
class PlacedExecution(Execution):
    """How modules run on devices: the config's record, and what a trainer adds to it.

    A config knows no devices. Modules take either record as their `execution`.

    Attributes:
      sharding: where activations live.
      adapter: what is trained beside frozen matrices; None trains the matrices.
    """

    sharding: ActivationSharding = UNSHARDED
    adapter: AdapterConfig | None = None


@functools.lru_cache(maxsize=64)  # modules are set up anew at each call
def place_execution(
    execution: Execution, sharding: ActivationSharding, adapter: AdapterConfig | None
) -> PlacedExecution:
    """Joins the three in one record."""
    fields = {field.name: getattr(execution, field.name) for field in dataclasses.fields(Execution)}
    return PlacedExecution(**fields, sharding=sharding, adapter=adapter)


def sharding_of(execution: Execution) -> ActivationSharding:
    """Returns where activations live; by default everything is whole on one device."""
    if isinstance(execution, PlacedExecution):
        return execution.sharding
    return UNSHARDED


def adapter_of(execution: Execution) -> AdapterConfig | None:
    """Returns the adapter that is trained beside frozen matrices, if there is one."""
    if isinstance(execution, PlacedExecution):
        return execution.adapter
    return None
