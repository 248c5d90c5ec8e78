"""LoRA: a trained product of two thin matrices beside each frozen one."""

import math
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite.config import Positive, Size
from flaxformer_lite.config.parts import AdaptedLayer, AdapterConfig, LayerScope
from flaxformer_lite.config.rules import Probability
from flaxformer_lite.nn.modules.einsum import Letters

A = "lora_a"
B = "lora_b"


@dataclass(frozen=True, kw_only=True)
class LoraConfig(AdapterConfig):
    """y = x W + scale * (dropout(x) A) B, where B starts at zero.

    The adapted model therefore starts equal to its base.

    Attributes:
      rank: R, the width between A and B.
      alpha: scale is alpha / R.
      dropout: rate of the dropout on the input of A.
      rslora: whether scale is alpha / sqrt(R), which keeps the size of the update as R grows.

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2022), section 4.1;
    Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA" (2023), theorem
    3.2.
    """

    factors: ClassVar[tuple[str, ...]] = (A, B)

    rank: Size = 8
    alpha: Positive = 16.0
    dropout: Probability = 0.0
    rslora: bool = False

    @property
    def scale(self) -> float:
        divisor = math.sqrt(self.rank) if self.rslora else self.rank
        return self.alpha / divisor

    def apply(
        self,
        layer: AdaptedLayer,
        x: jax.Array,
        kernel: jax.Array,
        y: jax.Array,
        bias: jax.Array | None,
    ) -> jax.Array:
        a, b = self.declare(layer)
        y = y + self.update(layer, x, a, b)
        if bias is None:
            return y
        return y + bias

    def declare(self, layer: AdaptedLayer) -> tuple[jax.Array, jax.Array]:
        """Declares A and B in a layer, in the dtype of its parameters."""
        letters = Letters(layer.equation)
        ins = letters.shape(letters.ins, layer.sizes)
        outs = letters.shape(letters.outs, layer.sizes)
        return self.declare_shapes(layer, ins, outs)

    def declare_shapes(
        self, layer: LayerScope, ins: tuple[int, ...], outs: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """Declares A and B of a matrix with these inputs and outputs."""
        bound = math.prod(ins) ** -0.5  # as PEFT starts A
        dtype = jnp.dtype(layer.execution.param_dtype)

        def uniform(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        a = layer.param(A, uniform, (*ins, self.rank), dtype)
        b = layer.param(B, nn.initializers.zeros, (self.rank, *outs), dtype)
        return a, b

    def update(self, layer: AdaptedLayer, x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        """Returns scale * (dropout(x) A) B, in the dtype of x."""
        return self.product(layer, self._dropped(layer, x), a, b)

    def product(self, layer: AdaptedLayer, x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        """Returns scale * (x A) B, in the dtype of x."""
        letters = Letters(layer.equation)
        # By einsum, where the base has a dot_general, so that a rule of qwix can quantize the base
        # alone. The ellipsis is what x has and the matrix has not.
        h = jnp.einsum(f"...{letters.ins},{letters.ins}r->...r", x, a.astype(x.dtype))
        return self.scale * jnp.einsum(
            f"...r,r{letters.outs}->...{letters.outs}", h, b.astype(x.dtype)
        )

    def beside_table(
        self, layer: LayerScope, x: jax.Array, kernel_VE: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns [x, dropout(x) A] and [W, scale * B^T], which give the adapted logits."""
        # A subclass with an `apply` of its own computes more than a product beside the matrix.
        if type(self).apply is not LoraConfig.apply:
            return super().beside_table(layer, x, kernel_VE)
        vocab, width = kernel_VE.shape
        a, b = self.declare_shapes(layer, (width,), (vocab,))
        h = jnp.einsum("...e,er->...r", self._dropped(layer, x), a.astype(x.dtype))
        added_VR = (self.scale * b.T).astype(kernel_VE.dtype)
        return jnp.concatenate([x, h], axis=-1), jnp.concatenate([kernel_VE, added_VR], axis=1)

    def _dropped(self, layer: LayerScope, x: jax.Array) -> jax.Array:
        if self.dropout and layer.has_rng("dropout"):
            return nn.Dropout(self.dropout, deterministic=False, name="lora_dropout")(x)
        return x

    def merged(
        self, kernel: jax.Array, bias: jax.Array | None, factors: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array | None]:
        return (kernel.astype(jnp.float32) + self.added(factors)).astype(kernel.dtype), bias

    def added(self, factors: tuple[jax.Array, ...]) -> jax.Array:
        """Returns scale * A B in float32, of the kernel's shape."""
        a, b = (factor.astype(jnp.float32) for factor in factors)
        # Or a TPU would multiply float32 in bfloat16.
        return self.scale * jnp.tensordot(a, b, 1, precision="highest")
