"""The feed-forward layer, plain or gated."""

import flax.linen as nn
import jax

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.functions.activations import ACTIVATIONS
from flaxformer_lite.functions.sharding import shard_act
from flaxformer_lite.modules.dropout import Dropout
from flaxformer_lite.modules.einsum import Einsum


class FeedForward(nn.Module):
    """y = act(x W_up) W_down, or gated, y = (act(x W_gate) * x W_up) W_down.

    Reference: Vaswani et al. (2017), section 3.3; Shazeer, "GLU Variants Improve Transformer" (2020), equation 6.
    """

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        cfg, sizes = self.cfg, {"D": self.cfg.d_model, "F": self.cfg.mlp_dim}
        biased = "mlp" in cfg.bias_at
        act = ACTIVATIONS[cfg.activation]
        up_BTF = Einsum(cfg, "BTD,DF->BTF", sizes, biased, name="up")(x_BTD)
        if cfg.mlp == "gated":
            h_BTF = act(Einsum(cfg, "BTD,DF->BTF", sizes, biased, name="gate")(x_BTD)) * up_BTF
        else:
            h_BTF = act(up_BTF)
        h_BTF = Dropout(cfg, "mlp")(shard_act(h_BTF, "BTF"))
        return Einsum(cfg, "BTF,FD->BTD", sizes, biased, residual=True, name="down")(h_BTF)
