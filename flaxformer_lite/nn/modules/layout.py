"""Conversion of layer weights between side by side and stacked, without loss."""

import re

import jax
import jax.numpy as jnp

from flaxformer_lite.types import Params

LAYER = re.compile(r"layer_(\d+)$")


def stack_layers(params: Params, period: int = 1) -> Params:
    """Stacks `layer_0 .. layer_n` anywhere in the tree into `layers/block_<i>`, with a Y axis.

    Args:
      params: nested dict of arrays.
      period: kinds of layer in the config's pattern, len(cfg.kinds).
    """
    if not isinstance(params, dict):
        return params
    layers = {}
    out = {}
    for key, value in params.items():
        numbered = LAYER.match(key)
        if numbered:
            layers[int(numbered[1])] = value
        else:
            out[key] = stack_layers(value, period)
    if layers:
        blocks = {}
        for kind in range(period):
            alike = [layers[i] for i in range(kind, len(layers), period)]
            blocks[f"block_{kind}"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike)
        out["layers"] = blocks
    return out


def unstack_layers(params: Params) -> Params:
    """Inverts `stack_layers`."""
    if not isinstance(params, dict):
        return params
    out = {key: unstack_layers(value) for key, value in params.items() if key != "layers"}
    if "layers" in params:
        period = len(params["layers"])
        for name, block in params["layers"].items():
            start = int(name.removeprefix("block_"))
            for row in range(jax.tree.leaves(block)[0].shape[0]):
                out[f"layer_{row * period + start}"] = jax.tree.map(
                    lambda x, row=row: x[row], block
                )
    return out
