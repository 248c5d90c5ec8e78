"""Products of one input, computed as one where `prepare_weights` has joined their matrices."""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import Execution
from flaxformer_lite.nn.modules.einsum import Einsum

JOINED = "joined"  # the layer that takes the place of the parts


def is_joined(module: nn.Module) -> bool:
    """Returns whether the weights of a module hold one matrix for several of its layers."""
    return module.has_variable("params", JOINED)


def multiply_joined(
    module: nn.Module, x_BTD: jax.Array, shapes: Sequence[tuple[int, ...]], execution: Execution
) -> list[jax.Array]:
    """Computes the outputs of the joined layers, [B, T, *shape] for each shape.

    To call within the `nn.compact` method of `module`.
    """
    widths = [math.prod(shape) for shape in shapes]
    has_bias = "bias" in module.get_variable("params", JOINED)
    sizes = {"D": x_BTD.shape[-1], "U": sum(widths)}
    layer = Einsum("BTD,DU->BTU", sizes, bias=has_bias, execution=execution, name=JOINED)
    parts = jnp.split(layer(x_BTD), np.cumsum(widths)[:-1], axis=-1)
    return [
        part.reshape(*x_BTD.shape[:2], *shape) for part, shape in zip(parts, shapes, strict=True)
    ]
