"""VeRA: two random matrices that all layers share, and two trained vectors for each."""

import math
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import Count, Positive, Size
from flaxformer_lite.config.parts import AdaptedLayer, AdapterConfig
from flaxformer_lite.config.rules import Probability
from flaxformer_lite.nn.modules.einsum import Letters, prepend_axes

A = "vera_a"
B = "vera_b"
D = "vera_lambda_d"
SCALE = "vera_lambda_b"


@dataclass(frozen=True, kw_only=True)
class VeraConfig(AdapterConfig):
    """y = x W + b * ((d * (dropout(x) A)) B), where b starts at zero.

    A and B are random and stay as they are; the vectors d and b are trained. All matrices take the
    same A and B: the first rows of A, uniform within sqrt(6 / inputs), and the first columns of B.

    Attributes:
      rank: R, the width between A and B.
      initial: what each element of d starts as.
      dropout: rate of the dropout on the input of A.
      seed: of A and B.
      save_projection: whether A and B are in PEFT's file; if not, PEFT draws them from `seed`.

    Reference: Kopiczko et al., "VeRA: Vector-based Random Matrix Adaptation" (2024), section 3.1.
    """

    factors: ClassVar[tuple[str, ...]] = (A, B, D, SCALE)
    constant: ClassVar[tuple[str, ...]] = (A, B)

    rank: Size = 256
    initial: Positive = 0.1
    dropout: Probability = 0.0
    seed: Count = 0
    save_projection: bool = True

    def apply(
        self,
        layer: AdaptedLayer,
        x: jax.Array,
        kernel: jax.Array,
        y: jax.Array,
        bias: jax.Array | None,
    ) -> jax.Array:
        letters = Letters(layer.equation)
        ins = letters.shape(letters.ins, layer.sizes)
        outs = letters.shape(letters.outs, layer.sizes)
        dtype = jnp.dtype(layer.execution.param_dtype)
        a = layer.param(A, self._draw_a, ins, dtype)
        b = layer.param(B, self._draw_b, outs, dtype)
        d = layer.param(D, nn.initializers.constant(self.initial), (self.rank,), dtype)
        scale = layer.param(SCALE, nn.initializers.zeros, outs, dtype)
        if self.dropout and layer.has_rng("dropout"):
            x = nn.Dropout(self.dropout, deterministic=False, name="vera_dropout")(x)
        # By einsum, where the base has a dot_general, so that a rule of qwix can quantize the base
        # alone. The ellipsis is what x has and the matrix has not.
        h = jnp.einsum(f"...{letters.ins},{letters.ins}r->...r", x, a.astype(x.dtype))
        h = prepend_axes(d.astype(x.dtype), h) * h
        update = jnp.einsum(f"...r,r{letters.outs}->...{letters.outs}", h, b.astype(x.dtype))
        y = y + prepend_axes(scale.astype(x.dtype), update) * update
        if bias is None:
            return y
        return y + bias

    def merged(
        self, kernel: jax.Array, bias: jax.Array | None, factors: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array | None]:
        a, b, d, scale = (factor.astype(jnp.float32) for factor in factors)
        # As in lora.py.
        added = jnp.tensordot(a * prepend_axes(d, a), b, 1, precision="highest")
        added = added * prepend_axes(scale, added)
        return (kernel.astype(jnp.float32) + added).astype(kernel.dtype), bias

    def _draw_a(self, _: jax.Array, ins: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        bound = math.sqrt(6 / math.prod(ins))
        drawn = _uniform(jax.random.key(self.seed), math.prod(ins), self.rank, bound)
        return drawn.reshape(*ins, self.rank).astype(dtype)

    def _draw_b(self, _: jax.Array, outs: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        bound = math.sqrt(6 / self.rank)
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        drawn = _uniform(key, math.prod(outs), self.rank, bound)
        return drawn.T.reshape(self.rank, *outs).astype(dtype)


def _uniform(key: jax.Array, rows: int, rank: int, bound: float) -> jax.Array:
    """Draws a matrix each of whose rows depends on its index alone, not on their number."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))
    return jax.vmap(lambda key: jax.random.uniform(key, (rank,), jnp.float32, -bound, bound))(keys)
