"""DoRA: LoRA for the direction of a matrix's columns, and a trained vector for their lengths."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.config.parts import AdaptedLayer
from flaxformer_lite.nn.adapters.lora import A, B, LoraConfig
from flaxformer_lite.nn.modules.einsum import Letters, prepend_axes

MAGNITUDE = "dora_magnitude"


@dataclass(frozen=True, kw_only=True)
class DoraConfig(LoraConfig):
    """y = x W + (s - 1) * dropout(x) W + s * scale * (dropout(x) A) B, as PEFT computes it.

    Here s = m / ||W + scale * A B||, with the norm of each column; without dropout, y is the
    paper's s * x (W + scale * A B). The magnitude m starts as ||W||, so that the model starts equal
    to its base. The norm takes no part in the gradient. Where it is zero, s is m; PEFT divides by
    zero there, and computes NaN.

    Reference: Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation" (2024), equation 5 and
    section 4.3.
    """

    factors: ClassVar[tuple[str, ...]] = (A, B, MAGNITUDE)

    def apply(
        self,
        layer: AdaptedLayer,
        x: jax.Array,
        kernel: jax.Array,
        y: jax.Array,
        bias: jax.Array | None,
    ) -> jax.Array:
        a, b = self.declare(layer)
        inputs = len(Letters(layer.equation).ins)
        dtype = jnp.dtype(layer.execution.param_dtype)
        m = layer.param(MAGNITUDE, lambda _: lengths(kernel, inputs).astype(dtype))
        directions = kernel.astype(jnp.float32) + self.added((a, b))
        scaled = _ratio(m, jax.lax.stop_gradient(lengths(directions, inputs)))
        # Multiplied in float32: near one, bfloat16 has steps of 0.4 to 0.8 percent.
        scaled = prepend_axes(scaled, y)
        dropped = self._dropped(layer, x)
        update = self.product(layer, dropped, a, b)
        if dropped is x:
            total = scaled * (y + update).astype(jnp.float32)
        else:
            letters = Letters(layer.equation)
            equation = f"...{letters.ins},{letters.ins}{letters.outs}->...{letters.outs}"
            of_dropped = jnp.einsum(equation, dropped, kernel.astype(dropped.dtype))
            total = y + (scaled - 1) * of_dropped.astype(jnp.float32) + scaled * update
        y = total.astype(x.dtype)
        if bias is None:
            return y
        return y + bias

    def initial_factors(
        self, kernel: jax.Array, factors: tuple[jax.Array, ...]
    ) -> dict[str, jax.Array]:
        m = factors[-1]
        return {MAGNITUDE: lengths(kernel, kernel.ndim - m.ndim).astype(m.dtype)}

    def merged(
        self, kernel: jax.Array, bias: jax.Array | None, factors: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array | None]:
        *thin, m = factors
        directions = kernel.astype(jnp.float32) + self.added(tuple(thin))
        scaled = _ratio(m, lengths(directions, kernel.ndim - m.ndim))
        return (directions * prepend_axes(scaled, directions)).astype(kernel.dtype), bias


def _ratio(m: jax.Array, norm: jax.Array) -> jax.Array:
    return m.astype(jnp.float32) / jnp.where(norm > 0, norm, 1)


def lengths(kernel: jax.Array, inputs: int) -> jax.Array:
    """Returns the float32 norm of each column of a kernel, summed over its first `inputs` axes."""
    squares = jnp.square(kernel.astype(jnp.float32))
    return jnp.sqrt(squares.sum(axis=tuple(range(inputs))))
