"""One block for every family: the residual is written once, and norm slots that the config does not name are the identity."""

from collections.abc import Callable

import flax.linen as nn
import jax

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.modules.attention import Attention
from flaxformer_lite.modules.cache import LayerCache
from flaxformer_lite.modules.context import Context
from flaxformer_lite.modules.dropout import Dropout
from flaxformer_lite.modules.feed_forward import FeedForward
from flaxformer_lite.modules.norms import Norm
from flaxformer_lite.modules.sharding import sharding_of


class Block(nn.Module):
    """Self-attention, cross-attention in a decoder that has an encoder, feed-forward.

    Each is wrapped as y = out(x + branch(layer(in(x)))), which is post-norm, pre-norm or sandwich-norm as `cfg.norm_at`
    says. With `wiring='parallel'` attention and feed-forward read the same x and are added together, each after its own
    `in` norm (GPT-NeoX); `parallel_shared` gives both the same norm (GPT-J).
    """

    cfg: ModelConfig
    window: int = 0
    causal: bool = False
    cross: bool = False

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: Context, cache: LayerCache | None = None):
        cfg = self.cfg
        attention = Attention(cfg, self.window, causal=self.causal, name="attention")
        mlp = FeedForward(cfg, name="mlp")
        if cfg.wiring != "sequential":
            h_BTD = self._norm("attention", "in", x_BTD)
            attended_BTD, cache = attention(h_BTD, context, cache)
            fed_BTD = mlp(h_BTD if cfg.wiring == "parallel_shared" else self._norm("mlp", "in", x_BTD))
            x_BTD = x_BTD + self._drop("attention", attended_BTD) + self._drop("mlp", fed_BTD)
            return sharding_of(cfg).constrain(x_BTD, "BTD"), cache

        def attend(h_BTD):
            nonlocal cache
            out_BTD, cache = attention(h_BTD, context, cache)
            return out_BTD

        def attend_cross(h_BTD):
            nonlocal cache
            out_BTD, cache = Attention(cfg, cross=True, name="cross_attention")(h_BTD, context, cache)
            return out_BTD

        x_BTD = self._residual("attention", x_BTD, attend)
        if self.cross:
            x_BTD = self._residual("cross_attention", x_BTD, attend_cross)
        return self._residual("mlp", x_BTD, mlp), cache

    def _residual(self, layer: str, x_BTD: jax.Array, apply: Callable[[jax.Array], jax.Array]) -> jax.Array:
        y_BTD = self._norm(layer, "branch", apply(self._norm(layer, "in", x_BTD)))
        x_BTD = sharding_of(self.cfg).constrain(x_BTD + self._drop(layer, y_BTD), "BTD")
        return self._norm(layer, "out", x_BTD)

    def _norm(self, layer: str, slot: str, x_BTD: jax.Array) -> jax.Array:
        return Norm(self.cfg, name=f"{layer}_{slot}_norm")(x_BTD) if slot in self.cfg.norm_at else x_BTD

    def _drop(self, layer: str, x_BTD: jax.Array) -> jax.Array:
        return Dropout(self.cfg, "branch", name=f"{layer}_dropout")(x_BTD)
