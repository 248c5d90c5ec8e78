"""The feed-forward layer, plain or gated."""

import flax.linen as nn
import jax

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.functions.activations import ACTIVATIONS
from flaxformer_lite.modules.dropout import Dropout
from flaxformer_lite.modules.einsum import Einsum
from flaxformer_lite.modules.sharding import sharding_of


class FeedForward(nn.Module):
    """y = act(x W_up) W_down, or gated, y = (act(x W_gate) * x W_up) W_down.

    Reference: Vaswani et al. (2017), section 3.3; Shazeer, "GLU Variants Improve Transformer" (2020), equation 6.
    """

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        cfg, sizes = self.cfg, {"D": self.cfg.d_model, "F": self.cfg.mlp_dim}
        sharding = sharding_of(cfg)
        biased = "mlp" in cfg.bias_at
        act = ACTIVATIONS[cfg.activation]
        names = ("up", "gate") if cfg.mlp == "gated" else ("up",)
        inputs = tuple(Einsum(cfg, "BTD,DF->BTF", sizes, biased, name=name)(x_BTD) for name in names)

        def hidden(inputs: tuple[jax.Array, ...]) -> jax.Array:
            *up, last = inputs
            return sharding.constrain(act(last) * up[0] if up else act(last), "BTF")

        down, dropout = Einsum(cfg, "BTF,FD->BTD", sizes, biased, residual=True, name="down"), Dropout(cfg, "mlp")
        if sharding.is_single_cpu and not dropout.on:
            return down(inputs, hidden)  # recomputed in the backward pass
        return down(dropout(hidden(inputs)))
