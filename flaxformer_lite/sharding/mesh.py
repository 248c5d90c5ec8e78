"""The mesh of devices that a config describes.

A single device is a mesh of size one; nothing else changes with scale.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.sharding.activations import MESH_AXES


def build_mesh(cfg: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Builds the mesh that the config describes, with the axes of MESH_AXES, all in Auto mode.

    Args:
      cfg: sizes; -1 takes all that the others leave.
      devices: by default all devices; or those that describe a TPU topology. A single process
        may use fewer than all, the first ones.

    Raises:
      ConfigError: the sizes exceed or do not divide the number of devices, or the slices do not
        match the devices.
    """
    if devices is None:
        devices = jax.devices()
    devices = list(devices)
    sizes = mesh_sizes(cfg, len(devices))
    count = math.prod(sizes.values())
    processes = {device.process_index for device in devices}
    if count < len(devices) and len(processes) > 1:
        raise ConfigError(
            f"{_shown(cfg)}: uses {count} of {len(devices)} devices, but several processes must use"
            " all; try -1."
        )
    if cfg.mode == "pmap" and jax.process_count() > 1:
        raise ConfigError(
            "mesh.mode='pmap': works in a single process only; try mesh.mode=shard_map, its equal."
        )
    grid = _grid(tuple(sizes.values()), cfg.slices, devices[:count])
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def mesh_sizes(cfg: MeshConfig, count: int) -> dict[str, int]:
    """Returns the size of each axis of a mesh over `count` devices, or over the first of them.

    Raises:
      ConfigError: the sizes exceed or do not divide the number of devices.
    """
    sizes = {axis: getattr(cfg, axis) for axis in MESH_AXES}
    fixed = math.prod(n for n in sizes.values() if n > 0)
    if fixed > count:
        raise ConfigError(
            f"{_shown(cfg)}: needs {fixed} devices, there are {count};"
            f" try {_fitting(sizes, fixed, count)}."
        )
    if -1 in sizes.values():
        if count % fixed:
            raise ConfigError(
                f"{_shown(cfg)}: {count} devices do not divide by {fixed};"
                f" try {_fitting(sizes, fixed, count)}."
            )
        for axis, size in sizes.items():
            if size == -1:
                sizes[axis] = count // fixed
    if sizes["data"] % cfg.slices:
        raise ConfigError(
            f"{_shown(cfg)}: mesh.data is {sizes['data']}, no multiple of mesh.slices={cfg.slices}."
        )
    return sizes


def _fitting(sizes: dict[str, int], fixed: int, count: int) -> str:
    """Returns the largest axis at the most that fits: a model that is split must stay split."""
    axis = max(sizes, key=lambda axis: sizes[axis])
    others = fixed // sizes[axis]
    if count % others:
        return "mesh.data=-1, others 1"
    return f"mesh.{axis}={math.gcd(sizes[axis], count // others)}"


def _shown(cfg: MeshConfig) -> str:
    return ", ".join(f"mesh.{axis}={getattr(cfg, axis)}" for axis in MESH_AXES)


def _grid(shape: tuple[int, ...], slices: int, devices: list[jax.Device]) -> np.ndarray:
    """Arranges devices as an array with near neighbors along the last axes.

    Slices are parts of the first axis.
    """
    present = {getattr(device, "slice_index", 0) for device in devices}
    if devices[0].platform == "tpu" and len(present) != slices:
        raise ConfigError(
            f"mesh.slices={slices}: the devices form {len(present)} slices; set"
            f" mesh.slices={len(present)}."
        )
    shape = (shape[0] // slices, *shape[1:])
    if slices > 1 and len(present) == slices:
        between = (slices,) + (1,) * (len(shape) - 1)
        return mesh_utils.create_hybrid_device_mesh(
            shape, between, devices, allow_split_physical_axes=True
        )
    grids = []
    for part in np.split(np.array(devices), slices):
        grid = mesh_utils.create_device_mesh(shape, list(part), allow_split_physical_axes=True)
        grids.append(grid)
    return np.concatenate(grids)
