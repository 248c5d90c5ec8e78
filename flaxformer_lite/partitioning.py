"""The one place that knows devices: the mesh, the shardings of a train state, and the jit of the step.

One device is a mesh of one; nothing else changes with scale. Weights follow ordered rules on their paths, kept as data
beside each model family; optimizer state follows its weights; batches are split over `data` and `fsdp`.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.functions.sharding import bind
from flaxformer_lite.placement import MESH_AXES, Placement, mesh_names, ways
from flaxformer_lite.training.state import path_of

DATA = MESH_AXES[0]
BATCH = P(("data", "fsdp"))
Rules = Sequence[tuple[str, tuple]]


def build_mesh(cfg: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh that the config asks for, with the axes of MESH_AXES, all in Auto mode.

    Args:
      cfg: sizes; -1 takes what the others leave.
      devices: all of them by default; a TPU topology's descriptions do as well. Sizes that need fewer use the first
        ones, on a single process.

    Raises:
      ConfigError: the sizes do not divide, or exceed, the devices, or the slices are not those of the devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = mesh_sizes(cfg, len(devices))
    count = math.prod(sizes.values())
    if count < len(devices) and len({device.process_index for device in devices}) > 1:
        raise ConfigError(
            f"{_shown(cfg)}: {count} of {len(devices)} devices, but several processes must use all; try -1."
        )
    if cfg.mode == "pmap" and jax.process_count() > 1:
        raise ConfigError("mesh.mode='pmap': is for one process; try mesh.mode=shard_map, which gives the same numbers.")
    grid = _grid(tuple(sizes.values()), cfg.slices, devices[:count])
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def mesh_sizes(cfg: MeshConfig, count: int) -> dict[str, int]:
    """The size of each axis of a mesh over `count` devices, or over the first of them.

    Raises:
      ConfigError: the sizes do not divide, or exceed, the devices.
    """
    sizes = {axis: getattr(cfg, axis) for axis in MESH_AXES}
    fixed = math.prod(n for n in sizes.values() if n > 0)
    if fixed > count:
        raise ConfigError(
            f"{_shown(cfg)}: needs {fixed} devices, there are {count}; try mesh.data=-1 and 1 for the others."
        )
    if -1 in sizes.values():
        if count % fixed:
            raise ConfigError(
                f"{_shown(cfg)}: {count} devices do not divide by {fixed}; try sizes that are powers of two."
            )
        sizes = {axis: n if n > 0 else count // fixed for axis, n in sizes.items()}
    if sizes["data"] % cfg.slices:
        raise ConfigError(
            f"{_shown(cfg)}: mesh.data comes to {sizes['data']}, no multiple of mesh.slices={cfg.slices}."
        )
    return sizes


def _shown(cfg: MeshConfig) -> str:
    return ", ".join(f"mesh.{axis}={getattr(cfg, axis)}" for axis in MESH_AXES)


def _grid(shape: tuple[int, ...], slices: int, devices: list[jax.Device]) -> np.ndarray:
    """The devices as an array: neighbours along the last axes are near each other, slices are parts of the first axis."""
    present = {getattr(device, "slice_index", 0) for device in devices}
    if devices[0].platform == "tpu" and len(present) != slices:
        raise ConfigError(f"mesh.slices={slices}: the devices are of {len(present)}; set mesh.slices={len(present)}.")
    shape = (shape[0] // slices, *shape[1:])
    if slices > 1 and len(present) == slices:
        between = (slices, *(1 for _ in shape[1:]))
        return mesh_utils.create_hybrid_device_mesh(shape, between, devices, allow_split_physical_axes=True)
    parts = np.split(np.array(devices), slices)
    return np.concatenate(
        [mesh_utils.create_device_mesh(shape, list(part), allow_split_physical_axes=True) for part in parts]
    )


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
            f"no partition rule matches parameter {path} {leaf.shape}; add one to flaxformer_lite/models/_partition.py."
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
        if size >= at_least and math.prod(ways(entry, mesh) for entry in spec) == 1:
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


def check_batch(batch_size: int, accumulate: int, mesh: Mesh) -> None:
    """A microbatch must split evenly over the devices along `data` and `fsdp`."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    if batch_size % (ways * accumulate):
        unit = ways * accumulate
        raise ConfigError(
            f"train.batch_size={batch_size}: {accumulate} microbatch(es) over {ways} devices (mesh.data x"
            f" mesh.fsdp) need a multiple of {unit}; try train.batch_size={-(-batch_size // unit) * unit}."
        )


def batch_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a batch that the devices of this process hold, ascending.

    Processes that share rows, where `context` or `tensor` lie across them, each read the same ones.
    """
    pieces = NamedSharding(mesh, BATCH).addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[piece] for piece in pieces]))


def place_batch(batch: Any, mesh: Mesh, batch_size: int | None = None) -> Any:
    """This process's rows of a batch (numpy) as global arrays split over `data` and `fsdp`.

    Args:
      batch: tree of arrays, their rows those of `batch_rows`.
      mesh: the devices.
      batch_size: of the whole batch; by default it is all here.
    """
    size = batch_size or len(jax.tree.leaves(batch)[0])
    rows, sharding = batch_rows(mesh, size), NamedSharding(mesh, BATCH)

    def place(own):
        def piece(index):
            start, stop, _ = index[0].indices(size)
            first = int(np.searchsorted(rows, start))
            return own[(slice(first, first + stop - start), *index[1:])]

        return jax.make_array_from_callback((size, *own.shape[1:]), sharding, piece)

    return jax.tree.map(place, batch)


def init_state(init: Callable[[], Any], rules: Rules, mesh: Mesh) -> tuple[Any, Any]:
    """Builds a state with each leaf already where it belongs: (state, shardings); one device never holds it whole."""
    shardings = state_shardings(jax.eval_shape(init), rules, mesh)
    return jax.jit(init, out_shardings=shardings)(), shardings


def jit_step(step: Callable, shardings: Any, mesh: Mesh, mode: str = "jit") -> Callable:
    """Compiles (state, batch) -> (state, metrics) over the mesh; the old state's memory is reused for the new one.

    Args:
      step: sees the whole batch under `jit`; its part, and sums over the axis DATA, in the other modes.
      shardings: of the state; all replicated in the other modes.
      mesh: over the devices.
      mode: of MeshConfig.
    """
    if mode == "pmap":
        return _pmapped(step, mesh)
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
    if mode == "jit":
        step = _anchored(step, mesh)
    else:
        step = jax.shard_map(step, mesh=mesh, in_specs=(P(), BATCH), out_specs=P(), check_vma=False)
    return jax.jit(step, in_shardings=(shardings, rows), out_shardings=(shardings, whole), donate_argnums=0)


def _pmapped(step: Callable, mesh: Mesh) -> Callable:
    """The step by `jax.pmap`, but for states and batches without an axis of devices."""
    mapped = jax.pmap(
        step, axis_name=DATA, in_axes=(None, 0), out_axes=None, devices=list(mesh.devices.flat), donate_argnums=0
    )

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P(DATA)))
    def by_device(batch):
        return jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), batch)

    def run(state, batch):
        return mapped(state, by_device(batch))

    run.lower = lambda state, batch: mapped.lower(state, by_device(batch))
    return run


def jit_eval(step: Callable, shardings: Any, mesh: Mesh) -> Callable:
    """Compiles (params, batch) -> sums over the mesh."""
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
    return jax.jit(_anchored(step, mesh), in_shardings=(shardings.params, rows), out_shardings=whole)


def _anchored(step: Callable, mesh: Mesh) -> Callable:
    """The step with its anchors bound; a new function for each mesh, because jit's cache does not know contexts."""

    def anchored(state, batch):
        with bind(Placement(mesh)):
            return step(state, batch)

    return anchored


def _fit(path: str, shape: tuple[int, ...], axes: tuple, mesh: Mesh) -> P:
    if len(axes) > len(shape):
        raise ConfigError(f"partition rule for {path}: {axes} names {len(axes)} dimensions, the parameter has {shape}.")
    axes = (None,) * (len(shape) - len(axes)) + tuple(axes)
    for size, entry in zip(shape, axes, strict=True):
        parts = ways(entry, mesh)
        if size % parts:
            names = " x ".join(f"mesh.{name}={mesh.shape[name]}" for name in mesh_names(entry))
            raise ConfigError(
                f"parameter {path} {shape}: a dimension of {size} does not divide over {names}; try smaller mesh"
                f" sizes or a multiple of {parts}."
            )
    return P(*axes)
