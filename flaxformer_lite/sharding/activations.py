"""Where activations live on a mesh."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

from flaxformer_lite.nn.functions.sharding import (
    ActivationSharding,
    Letters,
    Result,
    Shards,
    check_letters,
)

MeshAxes = str | tuple[str, ...] | None  # that split one axis of an array
DATA = "data"
FSDP = "fsdp"
MESH_AXES = (DATA, FSDP, "expert", "context", "tensor")
BATCH_AXES = (DATA, FSDP, "expert")
# The mesh axes that split each logical axis of activations; modules and functions only use the
# names of axes.py.
ACTIVATIONS: dict[str, MeshAxes] = {
    "batch": BATCH_AXES,
    "length": "context",
    "source": "context",
    "part": "context",
    "heads": "tensor",
    "kv_heads": "tensor",
    "experts": "expert",
    "mlp": "tensor",
    "vocab": "tensor",
}
# The same inside attention that exchanges lengths for heads; a `tensor` shard keeps its heads.
OVER_HEADS: dict[str, MeshAxes] = ACTIVATIONS | {
    "length": None,
    "source": None,
    "heads": ("tensor", "context"),
    "kv_heads": ("tensor", "context"),
}


@dataclass(frozen=True)
class LocalSharding(ActivationSharding):
    """The sharding inside one device of a mesh: everything whole, on its platform, untuned."""

    platform: str = "cpu"
    device_kind: str = "cpu"


@dataclass(frozen=True)
class MeshSharding(ActivationSharding):
    """Activations split over a mesh according to ACTIVATIONS.

    See ActivationSharding for the methods.

    Attributes:
      exchanged: whether lengths are whole and heads split instead, as OVER_HEADS says.
    """

    mesh: Mesh | AbstractMesh
    tuned: bool = field(default=True, kw_only=True)
    exchanged: bool = field(default=False, kw_only=True)

    @property
    def _axes(self) -> dict[str, MeshAxes]:
        if self.exchanged:
            return OVER_HEADS
        return ACTIVATIONS

    @functools.cached_property
    def platform(self) -> str:
        if isinstance(self.mesh, Mesh):
            return self.mesh.devices.flat[0].platform
        # An abstract mesh, as plans use at first, has sizes but no devices.
        return super().platform

    @property
    def device_kind(self) -> str:
        if isinstance(self.mesh, Mesh):
            return self.mesh.devices.flat[0].device_kind
        return super().device_kind

    def constrain(self, x: jax.Array, letters: str) -> jax.Array:
        fitting = []
        for name, size in zip(check_letters("constrain", letters, x.shape), x.shape, strict=True):
            entry = self._axes.get(name)
            # An axis that does not divide stays whole: one head cannot be split.
            divides = size % axis_size(entry, self.mesh) == 0
            fitting.append(entry if divides else None)
        return jax.lax.with_sharding_constraint(
            x, NamedSharding(self.mesh, _drop_repeated_axes(fitting))
        )

    def num_shards(self, letter: str) -> Shards:
        (name,) = check_letters("num_shards", letter)
        entry = self._axes.get(name) or ()
        mesh_axis = entry if isinstance(entry, str) else tuple(entry)
        return Shards(axis_size(entry, self.mesh), mesh_axis)

    def per_shard(
        self,
        function: Callable[..., Result],
        inputs: Sequence[Letters],
        output: Letters,
        *,
        over: str | None = None,
    ) -> Callable[..., Result]:
        by_hand = set(self.mesh.axis_names)
        if over is not None:
            by_hand = set()
            for name in check_letters("per_shard", over):
                by_hand |= set(mesh_names(self._axes[name]))

        def apply(*arguments):
            arrays, tree = jax.tree.flatten(arguments)
            letters = jax.tree.leaves(jax.tree.broadcast(tuple(inputs), arguments))
            sized = [self._sized(x, sizes) for x, sizes in zip(arrays, letters, strict=True)]
            split = self._splitting(sized, by_hand)

            def spec_of_input(axes: list[tuple[MeshAxes, int]]) -> P:
                entries: list[MeshAxes] = []
                for entry, size in axes:
                    # An axis of size one, such as the batch of a shared mask, is the same for all
                    # devices.
                    if entry not in split or size == 1:
                        entry = None
                    entries.append(entry)
                return _drop_repeated_axes(entries)

            def spec_of_output(letters: str) -> P:
                entries: list[MeshAxes] = []
                for name in check_letters("per_shard", letters):
                    entry = self._axes.get(name)
                    if entry not in split:
                        entry = None
                    entries.append(entry)
                return _drop_repeated_axes(entries)

            return jax.shard_map(
                lambda *leaves: function(*jax.tree.unflatten(tree, leaves)),
                mesh=self.mesh,
                in_specs=tuple(map(spec_of_input, sized)),
                out_specs=jax.tree.map(spec_of_output, output),
                axis_names=by_hand,
                check_vma=False,
            )(*arrays)

        return apply

    def _splitting(
        self, arrays: list[list[tuple[MeshAxes, int]]], by_hand: set[str]
    ) -> set[MeshAxes]:
        """Returns the entries of `by_hand` that divide every axis of the arrays they may split."""
        splitting: set[MeshAxes] = set()
        indivisible: set[MeshAxes] = set()
        for axes in arrays:
            for entry, size in axes:
                if entry is None or size == 1:
                    continue
                if set(mesh_names(entry)) <= by_hand:
                    splitting.add(entry)
                if size % axis_size(entry, self.mesh):
                    indivisible.add(entry)
        return splitting - indivisible

    def over_heads(self) -> ActivationSharding:
        return replace(self, exchanged=True)

    def inside_shard(self) -> ActivationSharding:
        return LocalSharding(self.platform, self.device_kind)

    def _sized(self, x: jax.Array, letters: str) -> list[tuple[MeshAxes, int]]:
        """Returns, for each leading axis of `x`, the mesh axes that may split it, and its size."""
        names = check_letters("per_shard", letters)
        return [(self._axes.get(name), size) for name, size in zip(names, x.shape, strict=False)]


def _drop_repeated_axes(entries: Sequence[MeshAxes]) -> P:
    """Uses each mesh axis for one array axis only.

    It splits the rows of T x S logits, but not their columns as well.
    """
    used = set[str]()
    once: list[MeshAxes] = []
    for entry in entries:
        names = set(mesh_names(entry))
        once.append(None if names & used else entry)
        used |= names
    return P(*once)


def mesh_names(entry: MeshAxes) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry or ())


def axis_size(entry: MeshAxes, mesh: Mesh | AbstractMesh) -> int:
    return math.prod(mesh.shape[name] for name in mesh_names(entry))


def num_batch_shards(sizes: Mapping[str, int]) -> int:
    """Returns into how many parts a mesh of these sizes splits a batch."""
    return math.prod(sizes[name] for name in BATCH_AXES)
