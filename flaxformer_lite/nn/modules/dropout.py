"""Dropout that is on exactly when a `dropout` key is passed to apply.

No call needs a `deterministic` flag.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution
from flaxformer_lite.nn.functions import cpu_tuning
from flaxformer_lite.nn.functions.sharding import sharding_of


class Dropout(nn.Module):
    """Dropout at the rate `execution.dropout` if `execution.dropout_at` names this slot.

    Otherwise it is the identity.
    """

    slot: str
    execution: Execution = Execution()

    @property
    def on(self) -> bool:
        return (
            self.slot in self.execution.dropout_at
            and self.execution.dropout > 0
            and self.has_rng("dropout")
        )

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if not self.on:
            return x
        # Named as before it was a class of its own, so that the masks of a seed stay the same.
        return _TunedDropout(self.execution.dropout, name="Dropout_0", execution=self.execution)(x)


class _TunedDropout(nn.Dropout):
    """`nn.Dropout` with the same mask, drawn faster on a CPU."""

    execution: Execution = Execution()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        kept = 1.0 - self.rate
        sharding = sharding_of(self.execution)
        mask = cpu_tuning.bernoulli(self.make_rng("dropout"), kept, inputs.shape, sharding)
        return jax.lax.select(mask, inputs / kept, jnp.zeros_like(inputs))
