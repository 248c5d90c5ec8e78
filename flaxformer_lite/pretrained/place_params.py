"""Parameters read from files onto devices, each device's part by itself."""

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.parameters import param_specs


def place(cfg: ModelConfig, stored: dict, mesh: Mesh | None = None) -> dict:
    """Reads parameters onto the default device, or onto a mesh by the family's partition rules."""
    flat = flatten_dict(stored, sep="/")
    if not mesh:
        return unflatten_dict(
            {path: jax.device_put(np.asarray(leaf)) for path, leaf in flat.items()}, sep="/"
        )
    specs = flatten_dict(param_specs(stored, parameter_rules.rules(cfg), mesh), sep="/")
    shardings = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
    made = {
        p: jax.make_array_from_callback(leaf.shape, shardings[p], leaf.read)
        for p, leaf in flat.items()
    }
    return unflatten_dict(made, sep="/")
