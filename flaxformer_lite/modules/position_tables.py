"""The learned tables of a position encoding, as parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.positions.encoding import Encoding

HOOKS = ("embed", "phase", "bias")


def hook(encoding: Encoding) -> str:
    """The one hook that an encoding overrides, or nothing."""
    return next((name for name in HOOKS if getattr(type(encoding), name) is not getattr(Encoding, name)), "")


class PositionTables(nn.Module):
    """Declares the tables that `cfg.position` asks for; the encoding itself is a pure function of them."""

    cfg: ModelConfig
    width: int = 0  # of tables added to embeddings; 0: d_model

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        cfg = self.cfg
        tables = cfg.position.tables(
            d_model=self.width or cfg.d_model,
            num_heads=cfg.num_heads,
            head_dim=cfg.head_width,
            max_length=cfg.max_length,
        )
        dtype = jnp.dtype(cfg.param_dtype)
        return {name: self.param(name, self._init(table.init), table.shape, dtype) for name, table in tables.items()}

    def _init(self, init: str | float):
        if init == "zeros":
            return nn.initializers.zeros
        return nn.initializers.normal(self.cfg.init_stddev if init == "normal" else init)
