"""One dense layer for all: an einsum whose equation tells what it does, its weight's shape, and the fans to initialise it."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.functions.cpu_tuning import recompute_matmul


def initializer(cfg: ModelConfig, fan_in: int, fan_out: int, *, residual: bool = False, gain: float = 1.0) -> Callable:
    """The initialiser that `cfg.init` names, for a weight with these fans.

    Args:
      cfg: init is `normal` (stddev init_stddev), `normal_residual` (the same, and layers that write to the residual stream
        are shrunk by 1 / sqrt(2 layers): Radford et al., GPT-2, section 2.3), `fan_in` (stddev gain / sqrt(fan_in): T5), or
        `xavier` (uniform within sqrt(6 / (fan_in + fan_out)): Glorot and Bengio 2010).
      fan_in: inputs summed for one output.
      fan_out: outputs one input goes to.
      residual: whether the layer writes to the residual stream.
      gain: of `fan_in` only.
    """
    if cfg.init == "xavier":
        limit = math.sqrt(6 / (fan_in + fan_out))
        return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -limit, limit)
    if cfg.init == "fan_in":
        return nn.initializers.normal(gain * fan_in**-0.5)
    depth = 2 * (cfg.encoder_layers + cfg.decoder_layers)
    shrink = depth**-0.5 if residual and cfg.init == "normal_residual" else 1.0
    return nn.initializers.normal(cfg.init_stddev * shrink)


class Einsum(nn.Module):
    """y = einsum(equation, x, kernel) + bias, in cfg.dtype.

    Attributes:
      cfg: dtypes and initialiser.
      equation: `BTD,DNH->BTNH`; the second operand is the weight, what is summed ends the first and begins the second.
      sizes: size of each letter of the weight.
      bias: whether to add one over the output letters that the weight brings.
      residual: whether the output is added to the residual stream (see `initializer`).
      gain: see `initializer`.
    """

    cfg: ModelConfig
    equation: str
    sizes: dict[str, int]
    bias: bool = False
    residual: bool = False
    gain: float = 1.0

    @nn.compact
    def __call__(self, x: Any, prepare: Callable[[Any], jax.Array] | None = None) -> jax.Array:
        """Applies the layer to `x`; or to `prepare(x)`, made again in the backward pass (functions/cpu_tuning.py).

        Args:
          x: array, or for `prepare` a tree of them, of one shape and its own dtype.
          prepare: elementwise.
        """
        inputs, out = self.equation.split("->")
        x_letters, w_letters = inputs.split(",")
        shape = tuple(self.sizes[c] for c in w_letters)
        summed = sum(c not in out for c in w_letters)
        fan_in = math.prod(self.sizes[c] for c in w_letters if c not in out)
        fan_out = math.prod(self.sizes[c] for c in w_letters if c in out)
        init = initializer(self.cfg, fan_in, fan_out, residual=self.residual, gain=self.gain)
        kernel = self.param("kernel", init, shape, jnp.dtype(self.cfg.param_dtype))
        # As one matrix: of a weight with more axes XLA:CPU makes a transposed copy for the backward pass, before the forward.
        flat = lambda x: x.reshape(*x.shape[: len(x_letters) - summed], fan_in)  # noqa: E731
        kernel_IO = kernel.astype(jax.tree.leaves(x)[0].dtype).reshape(fan_in, fan_out)
        if prepare is None:
            y = flat(x) @ kernel_IO
        else:
            y = recompute_matmul(lambda x: flat(prepare(x)), x, kernel_IO)
        y = y.reshape(*y.shape[:-1], *shape[summed:])
        if self.bias:
            shape = tuple(self.sizes[c] for c in out if c not in x_letters)
            bias = self.param("bias", nn.initializers.zeros, shape, jnp.dtype(self.cfg.param_dtype))
            y = y + bias.astype(y.dtype).reshape(tuple(1 if c in x_letters else self.sizes[c] for c in out))
        return y
