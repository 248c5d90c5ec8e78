"""Shardings of parameters and optimizer state.

They follow ordered rules on parameter paths, which are applied strictly.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.parts import PartitionRules, WhereItDivides
from flaxformer_lite.sharding.activations import (
    DATA,
    FSDP,
    MeshAxes,
    MeshSharding,
    axis_size,
    mesh_names,
)
from flaxformer_lite.types import Params

SCALE = "/kernel/scale"
# What a matrix is held as (nn/modules/einsum.py); both lie where the matrix would.
HELD = re.compile(r"/kernel/(codes|scale)$")


def path_of(keys: Sequence[object]) -> str:
    """Formats a pytree key path as `a/b/c`.

    Partition rules, decay masks and checkpoints write it in this form.
    """
    return "/".join(map(_key_name, keys))


def _key_name(key: object) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def param_specs(params: Params, rules: PartitionRules, mesh: Mesh) -> Params:
    """Returns one PartitionSpec per parameter, by the first rule whose regex matches its path.

    Args:
      params: tree of arrays or ShapeDtypeStructs.
      rules: (regex, axes) pairs. `axes` has a mesh axis, a tuple of them, a `WhereItDivides` or
        None for each dimension, aligned to the last dimensions, so that the leading axis of
        scanned layers stays whole.
      mesh: the mesh; its sizes must divide the dimensions.

    Raises:
      ConfigError: a parameter matches no rule, a rule matches no parameter, a dimension does not
        divide, or a rule uses an axis twice or names one that the mesh lacks.
    """
    for pattern, axes in rules:
        flat = [name for entry in axes for name in mesh_names(entry)]
        unknown = [name for name in flat if name not in mesh.shape]
        if unknown:
            raise ConfigError(
                f"partition rule {pattern!r}: no mesh axis {unknown[0]!r}; choose from"
                f" {', '.join(mesh.shape)}."
            )
        if len(set(flat)) < len(flat):
            raise ConfigError(
                f"partition rule {pattern!r}: {axes} uses a mesh axis twice; name each once."
            )
    used = set()

    def spec(keys, leaf):
        path = path_of(keys)
        for index, (pattern, axes) in enumerate(rules):
            if re.search(pattern, HELD.sub("/kernel", path)):
                used.add(index)
                if path.endswith(SCALE):
                    # Scales of groups have fewer inputs than the matrix, which the mesh need not
                    # divide.
                    axes = _that_divide(axes, leaf.shape, mesh)
                return _fit(path, leaf.shape, axes, mesh)
        raise ConfigError(
            f"no partition rule matches parameter {path} {leaf.shape}; add one to"
            " flaxformer_lite/sharding/parameter_rules.py."
        )

    specs = jax.tree_util.tree_map_with_path(spec, params)
    unused = [pattern for index, (pattern, _) in enumerate(rules) if index not in used]
    if unused:
        raise ConfigError(
            f"partition rules that match no parameter: {', '.join(map(repr, unused))}; rename them"
            " after the parameter, move them before a rule that matches first, or delete them."
        )
    return specs


def _rule(path: str, rules: PartitionRules) -> str:
    """Returns the pattern of the rule that applies to a parameter."""
    owner = HELD.sub("/kernel", path)
    return next(pattern for pattern, _ in rules if re.search(pattern, owner))


class HasParams(Protocol):
    """A train state (training/state.py)."""

    @property
    def params(self) -> Params: ...


State = TypeVar("State", bound=HasParams)


class Replicated(NamedTuple):
    """A parameter that every device holds whole, its size, and the rule it comes from."""

    path: str
    bytes: int
    rule: str


def list_replicated(
    params: Params, rules: PartitionRules, mesh: Mesh, at_least: int = 2**20
) -> list[Replicated]:
    """Lists large parameters that stay whole on a mesh that splits weights.

    They have at least `at_least` bytes; the largest come first.
    """
    if mesh.shape["fsdp"] * mesh.shape["tensor"] == 1:
        return []
    large = []
    for path, (leaf, spec) in _specs_by_path(params, rules, mesh).items():
        size = leaf.size * leaf.dtype.itemsize
        if size >= at_least and math.prod(axis_size(entry, mesh) for entry in spec) == 1:
            large.append(Replicated(path, size, _rule(path, rules)))
    return sorted(large, key=lambda leaf: -leaf.bytes)


def state_shardings(
    state: State, rules: PartitionRules, mesh: Mesh, *, over_data: bool = False
) -> State:
    """Returns the shardings of a TrainState.

    Parameters follow the rules, and optimizer state follows the parameter that it belongs to.
    With `over_data`, what is split over `fsdp` is split over `data` too, where that divides.

    A leaf of the optimizer belongs to a parameter if its path ends in the parameter's path and
    their shapes agree; the other leaves (counters, adafactor's row and column sums) are replicated.
    """
    known = _specs_by_path(state.params, rules, mesh)

    def like_param(keys, leaf):
        parts = path_of(keys).split("/")
        # The longest ending first, as the path of one parameter may end another's.
        for start in range(len(parts)):
            owner = known.get("/".join(parts[start:]))
            if owner is not None and owner[0].shape == leaf.shape:
                spec = owner[1]
                if over_data:
                    spec = _over_data(spec, leaf.shape, mesh)
                return NamedSharding(mesh, spec)
        return NamedSharding(mesh, P())

    return jax.tree_util.tree_map_with_path(like_param, state)


def _specs_by_path(
    params: Params, rules: PartitionRules, mesh: Mesh
) -> dict[str, tuple[jax.ShapeDtypeStruct, P]]:
    specs = jax.tree.leaves(param_specs(params, rules, mesh), is_leaf=lambda x: isinstance(x, P))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    by_path = {}
    for (keys, leaf), spec in zip(leaves, specs, strict=True):
        by_path[path_of(keys)] = (leaf, spec)
    return by_path


def _over_data(spec: P, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> P:
    entries: list[MeshAxes] = []
    for entry, size in itertools.zip_longest(spec, shape):
        names = mesh_names(entry)
        wider = (*names, DATA)
        if FSDP in names and size % axis_size(wider, mesh) == 0:
            entry = wider
        entries.append(entry)
    return P(*entries)


@dataclasses.dataclass(frozen=True)
class GatheringSharding(MeshSharding):
    """Activations split over a mesh whose weights are split over `data` too, between their uses.

    A weight is gathered over `data` before its use, and by the compiler over `fsdp` for the use
    itself. Its gradient takes the same steps back: it is reduced and scattered over `fsdp`, and the
    small part that is left over `data`. TPU compilers reduce a gradient that is scattered over both
    at once by an all-reduce, of twice the traffic.

    Attributes:
      rules: the partition rules of the parameters.

    Reference: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), section 5; Xu et al. 2020
    (arXiv:2004.13336).
    """

    rules: PartitionRules = dataclasses.field(kw_only=True)

    def gather_weight(self, weight: jax.Array, path: str) -> jax.Array:
        for pattern, axes in self.rules:
            if re.search(pattern, path):
                spec = _fit(path, weight.shape, axes, self.mesh)
                # As it is stored first, or the partitioner may cast it after gathering it.
                for each in (_over_data(spec, weight.shape, self.mesh), spec):
                    place = NamedSharding(self.mesh, each)
                    weight = jax.lax.with_sharding_constraint(weight, place)
                return weight
        return weight


def _fit(path: str, shape: tuple[int, ...], axes: tuple, mesh: Mesh | AbstractMesh) -> P:
    if len(axes) > len(shape):
        raise ConfigError(
            f"partition rule for {path}: {axes} names {len(axes)} dimensions, the parameter has"
            f" {shape}."
        )
    leading = len(shape) - len(axes)
    entries: list[MeshAxes] = [None] * leading
    for entry, size in zip(axes, shape[leading:], strict=True):
        entries.append(_where_it_divides(entry, size, mesh))
    for size, entry in zip(shape, entries, strict=True):
        parts = axis_size(entry, mesh)
        if size % parts:
            names = " x ".join(f"mesh.{name}={mesh.shape[name]}" for name in mesh_names(entry))
            raise ConfigError(
                f"parameter {path} {shape}: a dimension of {size} does not divide over {names}; try"
                f" smaller mesh sizes or a multiple of {parts}."
            )
    return P(*entries)


def _that_divide(axes: tuple, shape: tuple[int, ...], mesh: Mesh) -> tuple:
    """Returns the axes of a matrix for its scales, some of whose dimensions are too small."""
    sizes = shape[len(shape) - len(axes) :]
    entries = []
    for entry, size in zip(axes, sizes, strict=True):
        parts = axis_size(_where_it_divides(entry, size, mesh), mesh)
        entries.append(None if size % parts else entry)
    return tuple(entries)


def _where_it_divides(
    entry: MeshAxes | WhereItDivides, size: int, mesh: Mesh | AbstractMesh
) -> MeshAxes:
    if not isinstance(entry, WhereItDivides):
        return entry
    return None if size % mesh.shape[entry.axis] else entry.axis
