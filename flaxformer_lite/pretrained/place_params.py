"""Parameters read from files onto devices, each device's part by itself."""

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.parameters import param_specs


def place_params(cfg: ModelConfig, stored: dict, mesh: Mesh | None = None) -> dict:
    """Reads parameters onto the default device, or onto a mesh by the family's partition rules."""
    flat = flatten_dict(stored, sep="/")
    if not mesh:
        return unflatten_dict(
            {path: jax.device_put(np.asarray(leaf)) for path, leaf in flat.items()}, sep="/"
        )
    specs = flatten_dict(param_specs(stored, parameter_rules.rules(cfg), mesh), sep="/")
    shardings = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
    placed = {}
    for path, leaf in flat.items():
        if isinstance(leaf, jax.Array):  # of a new head or adapter
            placed[path] = jax.device_put(leaf, shardings[path])
        else:
            placed[path] = jax.make_array_from_callback(leaf.shape, shardings[path], leaf.read)
    return unflatten_dict(placed, sep="/")
