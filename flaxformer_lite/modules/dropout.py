"""Dropout that is on exactly when a `dropout` key is passed to apply, so that no signature carries a mode."""

import flax.linen as nn
import jax

from flaxformer_lite.config import ModelConfig


class Dropout(nn.Module):
    """Drops at `cfg.dropout` where `cfg.dropout_at` names this slot; the identity otherwise."""

    cfg: ModelConfig
    slot: str

    @property
    def on(self) -> bool:
        return self.slot in self.cfg.dropout_at and self.cfg.dropout > 0 and self.has_rng("dropout")

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if not self.on:
            return x
        return nn.Dropout(self.cfg.dropout, deterministic=False)(x)
