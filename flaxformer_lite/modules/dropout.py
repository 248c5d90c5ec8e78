"""Dropout that is on exactly when a `dropout` key is passed to apply, so that no signature carries a mode."""

import flax.linen as nn
import jax

from flaxformer_lite.config import ModelConfig


class Dropout(nn.Module):
    """Drops at `cfg.dropout` where `cfg.dropout_at` names this slot; the identity otherwise."""

    cfg: ModelConfig
    slot: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.slot not in self.cfg.dropout_at or not self.cfg.dropout or not self.has_rng("dropout"):
            return x
        return nn.Dropout(self.cfg.dropout, deterministic=False)(x)
