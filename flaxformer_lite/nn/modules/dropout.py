"""Dropout that is on exactly when a `dropout` key is passed to apply.

No call needs a `deterministic` flag.
"""

import flax.linen as nn
import jax

from flaxformer_lite.config import Execution


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
        return nn.Dropout(self.execution.dropout, deterministic=False)(x)
