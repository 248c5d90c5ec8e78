"""The block of all families: residual connections are written once.

Norm slots that are not named do nothing.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, LayerConfig
from flaxformer_lite.config.parts import FeedForwardConfig, MixerConfig, Part
from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.modules.context import Context, ContextLayer, call_layer
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.kv_cache import Left
from flaxformer_lite.nn.modules.norms import Norm


class Block(ContextLayer):
    """A mixer, optional cross-attention, and a feed-forward, each with its norms and residual.

    y = out(x + branch(layer(in(x))))            post-norm, pre-norm or sandwich-norm by cfg.norm_at
    y = out(branch(layer(in(x))))                if cfg.residual is none
    y = x + mixer(in(x)) + feed_forward(in'(x))  if cfg.residual is parallel

    With parallel_shared, in' is in. Mixer and feed-forward are times cfg.residual_multiplier.
    A part cfg.extra_branch is the last one, and reads the x that the first one reads; y is then
    zero at padding, as in the published code of DeBERTa-v2. With cfg.output_scale, y is multiplied
    with a number that is not trained.
    """

    cfg: LayerConfig
    execution: Execution = Execution()
    causal: bool = False  # whether each token sees only itself and earlier ones

    @nn.compact
    def forward(self, x_BTD: jax.Array, context: Context, cache: Left) -> tuple[jax.Array, Left]:
        cfg = self.cfg
        if cfg.residual.startswith("parallel"):
            return self._parallel(x_BTD, context, cache)
        first_BTD = x_BTD
        sharding = sharding_of(self.execution)
        ops = ops_of(sharding)
        for name, part in cfg.parts.items():
            h_BTD = ops.compute_gradient_once(self._norm(name, "in", x_BTD))
            if part is cfg.extra_branch:
                y_BTD, _ = self._apply(name, part, first_BTD, context, None)
            else:
                y_BTD, cache = self._apply(name, part, h_BTD, context, cache)
            y_BTD = self._drop(name, self._scaled(self._norm(name, "branch", y_BTD)))
            if cfg.residual != "none":
                y_BTD = x_BTD + y_BTD
            x_BTD = self._norm(name, "out", sharding.constrain(y_BTD, "BTD"))
        if cfg.extra_branch is not None and context.keep_BT is not None:
            x_BTD = jnp.where(context.keep_BT[..., None], x_BTD, 0)
        if cfg.output_scale:
            dtype = jnp.dtype(self.execution.param_dtype)
            scale = self.param("output_scale", nn.initializers.ones, (1,), dtype)
            x_BTD = x_BTD * jax.lax.stop_gradient(scale).astype(x_BTD.dtype)[None, None]
        return x_BTD, cache

    def _parallel(self, x_BTD: jax.Array, context: Context, cache: Left) -> tuple[jax.Array, Left]:
        (mixer, mixing), (fed, feeding) = self.cfg.parts.items()
        h_BTD = self._norm(mixer, "in", x_BTD)
        mixed_BTD, cache = self._apply(mixer, mixing, h_BTD, context, cache)
        if self.cfg.residual != "parallel_shared":
            h_BTD = self._norm(fed, "in", x_BTD)
        fed_BTD, _ = self._apply(fed, feeding, h_BTD, context, None)
        mixed_BTD = self._drop(mixer, self._scaled(mixed_BTD))
        fed_BTD = self._drop(fed, self._scaled(fed_BTD))
        x_BTD = x_BTD + mixed_BTD + fed_BTD
        return sharding_of(self.execution).constrain(x_BTD, "BTD"), cache

    def _apply(
        self, name: str, part: Part, h_BTD: jax.Array, context: Context, cache: Left
    ) -> tuple[jax.Array, Left]:
        """Computes a mixer or a feed-forward, and the cache after it."""
        if isinstance(part, FeedForwardConfig):
            module = part.module(self.execution, name=name)
            if part.reads_context:
                return module(h_BTD, context), cache
            return module(h_BTD), cache
        assert isinstance(part, MixerConfig), "a part of a layer is one or the other"
        module = part.module(self.execution, causal=self.causal, name=name)
        return call_layer(module, h_BTD, context, cache)

    def _norm(self, part: str, slot: str, x_BTD: jax.Array) -> jax.Array:
        if not self.cfg.has_norm(part, slot):
            return x_BTD
        return Norm(self.cfg.norm, self.execution, name=f"{part}_{slot}_norm")(x_BTD)

    def _scaled(self, y_BTD: jax.Array) -> jax.Array:
        factor = self.cfg.residual_multiplier
        if factor == 1:
            return y_BTD
        return y_BTD * jnp.asarray(factor, y_BTD.dtype)

    def _drop(self, part: str, x_BTD: jax.Array) -> jax.Array:
        return Dropout("branch", self.execution, name=f"{part}_dropout")(x_BTD)
