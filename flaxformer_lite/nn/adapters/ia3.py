"""IA3: a trained factor for each output of a matrix, or for each input."""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config.parts import AdaptedLayer, AdapterConfig, Patterns, matches_any
from flaxformer_lite.nn.modules.einsum import Letters, prepend_axes

SCALE = "ia3_scale"


@dataclass(frozen=True, kw_only=True)
class Ia3Config(AdapterConfig):
    """y = l * (x W + b), or y = (l * x) W + b; l starts at one.

    Attributes:
      on_inputs: patterns of those targets whose inputs are scaled instead of their outputs; the
        paper scales what the second matrix of a feed-forward reads.

    Reference: Liu et al., "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than
    In-Context Learning" (2022), section 3.3.
    """

    factors: ClassVar[tuple[str, ...]] = (SCALE,)

    targets: Patterns = ("key", "value", "down")
    on_inputs: Patterns = ("down",)

    def apply(
        self,
        layer: AdaptedLayer,
        x: jax.Array,
        kernel: jax.Array,
        y: jax.Array,
        bias: jax.Array | None,
    ) -> jax.Array:
        letters = Letters(layer.equation)
        scales_inputs = matches_any(self.on_inputs, "/".join((*layer.path, "kernel")))
        ins = letters.shape(letters.ins, layer.sizes)
        outs = letters.shape(letters.outs, layer.sizes)
        # With the kernel's rank, so that `merged` can distinguish the two cases.
        if scales_inputs:
            shape = ins + (1,) * len(outs)
        else:
            shape = (1,) * len(ins) + outs
        dtype = jnp.dtype(layer.execution.param_dtype)
        scale = layer.param(SCALE, nn.initializers.ones, shape, dtype).astype(jnp.float32)
        # Multiplied in float32: near one, bfloat16 has steps of 0.4 to 0.8 percent.
        if scales_inputs:
            scaled = (x.astype(jnp.float32) * prepend_axes(scale.reshape(ins), x)).astype(x.dtype)
            y = jnp.einsum(layer.equation, scaled, kernel)
        if bias is not None:
            y = y + bias
        if scales_inputs:
            return y
        return (y.astype(jnp.float32) * prepend_axes(scale.reshape(outs), y)).astype(x.dtype)

    def merged(
        self, kernel: jax.Array, bias: jax.Array | None, factors: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array | None]:
        scale = factors[0].astype(jnp.float32)
        if bias is not None:
            inputs = scale.shape[: kernel.ndim - bias.ndim]
            scales_outputs = all(size == 1 for size in inputs)
            if scales_outputs:
                scaled = bias.astype(jnp.float32) * scale.reshape(bias.shape)
                bias = scaled.astype(bias.dtype)
        return (kernel.astype(jnp.float32) * scale).astype(kernel.dtype), bias
