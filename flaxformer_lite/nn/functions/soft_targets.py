"""Targets that are a teacher's distribution over the vocabulary instead of one label."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.functions.deferred_logits import DeferredLogits


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SoftTargets:
    """A teacher's logits for the same tokens, which the loss mixes in.

    Reference: Hinton et al. 2015, section 2 (arXiv:1503.02531).

    Attributes:
      projection: of the teacher; no gradient reaches it.
      temperature: t, which divides the logits of both.
      weight: a, in `(1 - a) loss + a t^2 KL(p || q)`, with p and q the teacher's and our
        distribution at temperature t.
    """

    projection: DeferredLogits
    temperature: float = field(default=1.0, metadata={"static": True})
    weight: float = field(default=0.5, metadata={"static": True})

    def divergence(self, logits: jax.Array) -> jax.Array:
        """Computes `t^2 KL(p || q)` per token from our logits [..., V]."""
        log_p = jax.nn.log_softmax(self.projection.logits() / self.temperature)
        log_q = jax.nn.log_softmax(logits / self.temperature)
        return self.temperature**2 * (jnp.exp(log_p) * (log_p - log_q)).sum(axis=-1)
