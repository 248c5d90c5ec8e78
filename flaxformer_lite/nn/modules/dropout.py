"""Dropout that is on exactly when a `dropout` key is passed to apply.

No call needs a `deterministic` flag.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution
from flaxformer_lite.nn.functions.device_ops import ops_of
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
        # Named like linen's module, so that the masks of a seed stay what they were.
        return DropoutMask(self.execution, name="Dropout_0")(x)


def dropout_of_weights(module: nn.Module, execution: Execution) -> tuple[float, jax.Array | None]:
    """Returns the rate and the key of dropout of attention's weights; 0 and None: it is off."""
    if "attention" in execution.dropout_at and execution.dropout and module.has_rng("dropout"):
        return execution.dropout, module.make_rng("dropout")
    return 0.0, None


class DropoutMask(nn.Module):
    """Drops elements as `nn.Dropout` does, by the same mask, which a CPU draws faster here."""

    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kept = 1.0 - self.execution.dropout
        ops = ops_of(sharding_of(self.execution))
        mask = ops.draw(self.make_rng("dropout"), kept, x.shape)
        return jax.lax.select(mask, x / kept, jnp.zeros_like(x))
