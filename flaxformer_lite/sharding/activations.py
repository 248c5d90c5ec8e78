"""Where activations live on a mesh: the meaning of the anchors of functions/sharding.py."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from flaxformer_lite.functions.sharding import Names, Pieces

MESH_AXES = ("data", "fsdp", "context", "tensor")
# Where the logical axes of activations go; the anchors in modules/ speak of axes.py, only this table of the mesh.
ACTIVATIONS = {
    "batch": ("data", "fsdp"), "length": "context", "source": "context", "part": "context", "heads": "tensor",
    "kv_heads": "tensor", "mlp": "tensor", "vocab": "tensor",
}  # fmt: skip


class ActivationSharding:
    """The meaning of functions/sharding.py's anchors on one mesh."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self.platform = mesh.devices.flat[0].platform

    def constrain(self, x: jax.Array, names: Names) -> jax.Array:
        # One head cannot be split: a size that does not divide stays whole.
        entries = [ACTIVATIONS.get(name) for name in names]
        fitting = [
            e if size % axis_size(e, self._mesh) == 0 else None for e, size in zip(entries, x.shape, strict=True)
        ]
        return jax.lax.with_sharding_constraint(x, NamedSharding(self._mesh, _once(fitting)))

    def pieces(self, name: str) -> Pieces:
        entry = ACTIVATIONS.get(name, ())
        return Pieces(axis_size(entry, self._mesh), entry)

    def per_shard(self, function: Callable, arrays: list, names: list[Names], output: Any, over: Names | None) -> Any:
        by_hand = self._mesh.axis_names if over is None else [a for name in over for a in mesh_names(ACTIVATIONS[name])]
        sized = [
            [(ACTIVATIONS.get(name), size) for name, size in zip(own, x.shape, strict=False)]
            for x, own in zip(arrays, names, strict=True)
        ]
        flat = [(entry, size) for one in sized for entry, size in one if entry and size > 1]
        split = {entry for entry, _ in flat if set(mesh_names(entry)) <= set(by_hand)}
        split -= {entry for entry, size in flat if size % axis_size(entry, self._mesh)}
        in_specs = tuple(_once([e if e in split and size > 1 else None for e, size in one]) for one in sized)
        out_specs = jax.tree.map(
            lambda own: _once([e if (e := ACTIVATIONS.get(name)) in split else None for name in own]),
            output,
            is_leaf=lambda node: isinstance(node, tuple) and all(isinstance(name, str) for name in node),
        )
        return jax.shard_map(
            function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, axis_names=set(by_hand), check_vma=False
        )(*arrays)


def _once(entries: Sequence[Any]) -> P:
    """A mesh axis splits one axis of an array: the rows of T x S logits, not their columns as well."""
    return P(*(entry if entry not in entries[:i] else None for i, entry in enumerate(entries)))


def mesh_names(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def axis_size(entry: Any, mesh: Mesh) -> int:
    return math.prod(mesh.shape[name] for name in mesh_names(entry))
