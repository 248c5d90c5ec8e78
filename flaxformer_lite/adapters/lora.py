"""LoRA: a trained product of two thin matrices beside each frozen one."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Positive, Size
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.config.rules import Probability

A = "lora_a"
B = "lora_b"


@dataclass(frozen=True, kw_only=True)
class LoraConfig(AdapterConfig):
    """y = x W + scale * (dropout(x) A) B, where B starts at zero, so that the model starts equal to
    its base.

    Attributes:
      rank: R, the width between A and B.
      alpha: scale is alpha / R.
      dropout: rate of the dropout on the input of A.
      rslora: whether scale is alpha / sqrt(R), which keeps the size of the update as R grows.

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2022), section 4.1;
      Kalajdzievski, "A Rank
    Stabilization Scaling Factor for Fine-Tuning with LoRA" (2023), theorem 3.2.
    """

    factors: ClassVar[tuple[str, ...]] = (A, B)

    rank: Size = 8
    alpha: Positive = 16.0
    dropout: Probability = 0.0
    rslora: bool = False

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def update(
        self, layer: nn.Module, x: jax.Array, equation: str, shape: tuple[int, ...], dtype: Any
    ) -> jax.Array:
        inputs, out = equation.split("->")
        x_letters, w_letters = inputs.split(",")
        summed = sum(c not in out for c in w_letters)
        ins = w_letters[:summed]
        outs = w_letters[summed:]
        rest = x_letters[: x.ndim - summed]
        bound = math.prod(shape[:summed]) ** -0.5  # as PEFT starts A

        def uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        a = layer.param(A, uniform, (*shape[:summed], self.rank), dtype)
        b = layer.param(B, nn.initializers.zeros, (self.rank, *shape[summed:]), dtype)
        if self.dropout and layer.has_rng("dropout"):
            x = nn.Dropout(self.dropout, deterministic=False, name="lora_dropout")(x)
        # By einsum, where the base has a dot_general, so that a rule of qwix can quantize the base
        # alone.
        h = jnp.einsum(f"{x_letters},{ins}r->{rest}r", x, a.astype(x.dtype))
        return self.scale * jnp.einsum(f"{rest}r,r{outs}->{out}", h, b.astype(x.dtype))

    def merged(self, kernel: jax.Array, factors: tuple[jax.Array, ...]) -> jax.Array:
        a, b = (factor.astype(jnp.float32) for factor in factors)
        added = self.scale * jnp.tensordot(a, b, 1, precision="highest")
        return (kernel.astype(jnp.float32) + added).astype(kernel.dtype)
