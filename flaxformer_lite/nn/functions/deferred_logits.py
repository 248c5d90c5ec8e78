"""Logits that are computed later, fused with the loss that reads them."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class DeferredLogits:
    """Logits that are not yet multiplied out: `cap tanh((scale x W^T + b) / cap)`.

    A softcap of 0 caps nothing.
    """

    x: jax.Array  # features [..., D], in the dtype of the matmul (a CPU computes it in float32)
    kernel_VD: jax.Array  # the vocabulary's vectors; tied embeddings are passed as they are
    bias_V: jax.Array | None = None
    scale: float = field(default=1.0, metadata={"static": True})  # T5's D ** -0.5
    softcap: float = field(default=0.0, metadata={"static": True})
    sharding: ActivationSharding = field(default=UNSHARDED, metadata={"static": True})

    def logits(self) -> jax.Array:
        """Computes all logits, float32 [..., V]."""
        return self.from_dots(self.dot(self.x, self.kernel_VD.astype(self.x.dtype), (-1, 1)))

    def from_dots(self, dots: jax.Array) -> jax.Array:
        """Computes logits from the bare dot products `x W^T`."""
        if dots.ndim > 2:
            dots = self.sharding.constrain(dots, "BTV" if dots.ndim == 3 else "BQTV")
        logits = dots * self.scale
        if self.bias_V is not None:
            logits += jnp.expand_dims(self.bias_V.astype(jnp.float32), range(logits.ndim - 1))
        if not self.softcap:
            return logits
        return self.softcap * jnp.tanh(logits / self.softcap)

    def dot(
        self, a: jax.Array, b: jax.Array, axes: tuple[int, int] | tuple[tuple[int, ...], ...]
    ) -> jax.Array:
        """Multiplies a and b, summed over `axes`, in float32."""
        # XLA:CPU lacks some bfloat16 products with a float32 result.
        if self.sharding.platform == "cpu":
            a = a.astype(jnp.float32)
            b = b.astype(jnp.float32)
        return jnp.tensordot(a, b, axes, preferred_element_type=jnp.float32)
