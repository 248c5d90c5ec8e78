"""The block of all families: residual connections are written once.

Norm slots that are not named do nothing.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, LayerConfig
from flaxformer_lite.config.parts import FeedForwardConfig, MixerConfig
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.functions.tpu_tuning import materialize
from flaxformer_lite.nn.modules.cache import LayerOutput, MixerCache
from flaxformer_lite.nn.modules.context import Context, with_options
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.norms import Norm


class Block(nn.Module):
    """A mixer, optional cross-attention, and a feed-forward, each with its norms and residual.

    y = out(x + branch(layer(in(x))))            post-norm, pre-norm or sandwich-norm by cfg.norm_at
    y = out(branch(layer(in(x))))                if cfg.residual is none
    y = x + mixer(in(x)) + feed_forward(in'(x))  if cfg.residual is parallel

    With parallel_shared, in' is in. Mixer and feed-forward are times cfg.residual_multiplier.
    A part cfg.beside is the last one, and reads the x that the first one reads; y is then zero at
    padding, as in the published code of DeBERTa-v2.
    """

    cfg: LayerConfig
    execution: Execution = Execution()
    causal: bool = False  # whether each token sees only itself and earlier ones

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        context: Context | None = None,
        cache: MixerCache | None = None,
        *,
        mask: Mask | jax.Array | None = None,
    ) -> LayerOutput:
        """Returns y [B, T, D], or (y, cache) if a cache was passed."""
        cfg = self.cfg
        context = with_options(context, x_BTD, cache, mask=mask)
        has_cache = cache is not None

        def mixed(name: str, mixer: MixerConfig) -> Callable[[jax.Array], jax.Array]:
            module = mixer.module(self.execution, causal=self.causal, name=name)

            def apply(h_BTD: jax.Array) -> jax.Array:
                nonlocal cache
                if not has_cache:
                    return module(h_BTD, context)
                y_BTD, cache = module(h_BTD, context, cache)
                return y_BTD

            return apply

        def fed(name: str, feed_forward: FeedForwardConfig) -> Callable[[jax.Array], jax.Array]:
            module = feed_forward.module(self.execution, name=name)
            if not feed_forward.reads_context:
                return module
            return lambda h_BTD: module(h_BTD, context)

        apply: dict[str, Callable[[jax.Array], jax.Array]] = {}
        for name, part in cfg.parts.items():
            if isinstance(part, FeedForwardConfig):
                apply[name] = fed(name, part)
            elif isinstance(part, MixerConfig) and part is not cfg.beside:
                apply[name] = mixed(name, part)
        if cfg.beside is not None:
            beside = cfg.beside.module(self.execution, causal=self.causal, name=cfg.beside.name)
            first_BTD = x_BTD
            apply[cfg.beside.name] = lambda _: beside(first_BTD, context)
        if not cfg.residual.startswith("parallel"):
            for name, layer in apply.items():
                x_BTD = self._residual(name, x_BTD, layer)
        else:
            x_BTD = self._parallel(apply, x_BTD)
        if cfg.beside is not None and context.keep_BT is not None:
            x_BTD = jnp.where(context.keep_BT[..., None], x_BTD, 0)
        if has_cache:
            return x_BTD, cache
        return x_BTD

    def _residual(
        self, part: str, x_BTD: jax.Array, apply: Callable[[jax.Array], jax.Array]
    ) -> jax.Array:
        h_BTD = materialize(self._norm(part, "in", x_BTD), sharding_of(self.execution), value=False)
        y_BTD = self._drop(part, self._scaled(self._norm(part, "branch", apply(h_BTD))))
        if self.cfg.residual != "none":
            y_BTD = x_BTD + y_BTD
        return self._norm(part, "out", sharding_of(self.execution).constrain(y_BTD, "BTD"))

    def _parallel(
        self, apply: dict[str, Callable[[jax.Array], jax.Array]], x_BTD: jax.Array
    ) -> jax.Array:
        (mixer, mix), (fed, feed) = apply.items()
        h_BTD = self._norm(mixer, "in", x_BTD)
        mixed_BTD = mix(h_BTD)
        if self.cfg.residual != "parallel_shared":
            h_BTD = self._norm(fed, "in", x_BTD)
        fed_BTD = feed(h_BTD)
        mixed_BTD = self._drop(mixer, self._scaled(mixed_BTD))
        fed_BTD = self._drop(fed, self._scaled(fed_BTD))
        x_BTD = x_BTD + mixed_BTD + fed_BTD
        return sharding_of(self.execution).constrain(x_BTD, "BTD")

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
