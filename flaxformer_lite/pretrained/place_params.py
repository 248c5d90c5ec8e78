"""Parameters read from files onto devices, each device's part by itself."""

import gc
import math

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.pretrained.safetensors import holds_nan, warn_of_nan
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.parameters import param_specs


def place_params(cfg: ModelConfig, stored: dict, mesh: Mesh | None = None) -> dict:
    """Reads parameters onto the default device, or onto a mesh by the family's partition rules."""
    flat = flatten_dict(stored, sep="/")
    # The largest first, while there is room: what is read exists twice until it is on its device.
    order = sorted(flat, key=lambda path: -math.prod(flat[path].shape))
    placed = {}
    damaged = []
    if not mesh:
        for path in order:
            read = np.asarray(flat[path])
            if holds_nan(read):
                damaged.append(path)
            placed[path] = jax.device_put(read)
            del read
        gc.collect(0)  # jax lets go of numpy's copies then
        warn_of_nan(damaged, len(order))
        return unflatten_dict(placed, sep="/")
    specs = flatten_dict(param_specs(stored, parameter_rules.rules(cfg), mesh), sep="/")
    shardings = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
    for path in order:
        leaf = flat[path]
        if isinstance(leaf, jax.Array):  # of a new head or adapter
            placed[path] = jax.device_put(leaf, shardings[path])
        else:
            placed[path] = jax.make_array_from_callback(leaf.shape, shardings[path], leaf.read)
    return unflatten_dict(placed, sep="/")
