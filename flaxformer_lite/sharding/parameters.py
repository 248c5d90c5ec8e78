"""Where parameters and the state that follows them live: ordered rules on their paths, applied strictly."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from flaxformer_lite.config import ConfigError
from flaxformer_lite.sharding.activations import axis_size, mesh_names

Rules = Sequence[tuple[str, tuple]]


def path_of(keys: Sequence[Any]) -> str:
    """A pytree key path as `a/b/c`, the form that partition rules, decay masks and checkpoints speak of."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in keys)


def param_specs(params: Any, rules: Rules, mesh: Mesh) -> Any:
    """One PartitionSpec per parameter, by the first rule whose regex is found in its path.

    Args:
      params: tree of arrays or ShapeDtypeStructs.
      rules: (regex, axes) pairs. `axes` has a mesh axis, a tuple of them or None for each dimension, and is aligned
        right, so that the leading axis of scanned layers stays whole.
      mesh: gives the sizes that dimensions must divide by.

    Raises:
      ConfigError: a parameter that no rule matches, a rule that matches nothing, a dimension that does not divide, an
        axis used twice in one rule or unknown to the mesh.
    """
    for pattern, axes in rules:
        flat = [name for entry in axes for name in mesh_names(entry)]
        if unknown := [name for name in flat if name not in mesh.shape]:
            raise ConfigError(
                f"partition rule {pattern!r}: no mesh axis {unknown[0]!r}; there are {', '.join(mesh.shape)}."
            )
        if len(set(flat)) < len(flat):
            raise ConfigError(f"partition rule {pattern!r}: {axes} uses a mesh axis twice; name each once.")
    used = set()

    def spec(keys, leaf):
        path = path_of(keys)
        for index, (pattern, axes) in enumerate(rules):
            if re.search(pattern, path):
                used.add(index)
                return _fit(path, leaf.shape, axes, mesh)
        raise ConfigError(
            f"no partition rule matches parameter {path} {leaf.shape}; add one to flaxformer_lite/sharding/parameter_rules.py."
        )

    specs = jax.tree_util.tree_map_with_path(spec, params)
    if dead := [rules[i][0] for i in range(len(rules)) if i not in used]:
        raise ConfigError(
            f"partition rules that match no parameter: {', '.join(map(repr, dead))}; the parameter was renamed,"
            f" an earlier rule takes it, or the rule can go."
        )
    return specs


class Replicated(NamedTuple):
    """A parameter that every device holds whole, its size, and the rule that says so."""

    path: str
    bytes: int
    rule: str


def replicated(params: Any, rules: Rules, mesh: Mesh, at_least: int = 2**20) -> list[Replicated]:
    """The parameters of at least so many bytes that a mesh which splits weights leaves whole, largest first."""
    if mesh.shape["fsdp"] * mesh.shape["tensor"] == 1:
        return []
    found, specs = [], jax.tree.leaves(param_specs(params, rules, mesh), is_leaf=lambda x: isinstance(x, P))
    for (keys, leaf), spec in zip(jax.tree_util.tree_leaves_with_path(params), specs, strict=True):
        path, size = path_of(keys), leaf.size * leaf.dtype.itemsize
        if size >= at_least and math.prod(axis_size(entry, mesh) for entry in spec) == 1:
            found.append(Replicated(path, size, next(pattern for pattern, _ in rules if re.search(pattern, path))))
    return sorted(found, key=lambda leaf: -leaf.bytes)


def state_shardings(state: Any, rules: Rules, mesh: Mesh) -> Any:
    """Shardings of a whole TrainState: parameters by the rules, optimizer state as the parameter it belongs to.

    A leaf of the optimizer belongs to the parameter whose path ends its own and whose shape it has; all else (counters,
    adafactor's row and column sums) is replicated.
    """
    specs = param_specs(state.params, rules, mesh)
    flat_specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P))
    known = {
        path_of(keys): (leaf.shape, spec)
        for (keys, leaf), spec in zip(jax.tree_util.tree_leaves_with_path(state.params), flat_specs, strict=True)
    }

    def like_param(keys, leaf):
        parts = path_of(keys).split("/")
        for start in range(len(parts)):
            shape, spec = known.get("/".join(parts[start:]), (None, P()))
            if shape == leaf.shape:
                return NamedSharding(mesh, spec)
        return NamedSharding(mesh, P())

    return jax.tree_util.tree_map_with_path(like_param, state)


def _fit(path: str, shape: tuple[int, ...], axes: tuple, mesh: Mesh) -> P:
    if len(axes) > len(shape):
        raise ConfigError(f"partition rule for {path}: {axes} names {len(axes)} dimensions, the parameter has {shape}.")
    axes = (None,) * (len(shape) - len(axes)) + tuple(axes)
    for size, entry in zip(shape, axes, strict=True):
        parts = axis_size(entry, mesh)
        if size % parts:
            names = " x ".join(f"mesh.{name}={mesh.shape[name]}" for name in mesh_names(entry))
            raise ConfigError(
                f"parameter {path} {shape}: a dimension of {size} does not divide over {names}; try smaller mesh"
                f" sizes or a multiple of {parts}."
            )
    return P(*axes)
