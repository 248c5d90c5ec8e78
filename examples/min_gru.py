"""A recurrent layer that trains in parallel, written outside the package: minGRU, whose gates do
not look at the state.

    flaxformer_lite train --config=gpt2_tiny:nope --workdir=runs/min_gru
    --config.model.mixer.name=examples.min_gru:MinGruConfig

As h is linear in the state before, all tokens are computed at once, by an associative scan.
Documents, padding, caches and what a recurrence must refuse are the library's: the layer only says
what a start and a padding token mean to its scan.

Reference: Feng et al. 2024, "Were RNNs All We Needed?" (arXiv:2410.01201), section 3.1.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite import Context, Execution
from flaxformer_lite.config import ConfigError, InitConfig
from flaxformer_lite.config.parts import MixerConfig
from flaxformer_lite.nn.modules.cache import StateCache, empty_state
from flaxformer_lite.nn.modules.documents import with_documents
from flaxformer_lite.nn.modules.einsum import Einsum


@dataclass(frozen=True, kw_only=True)
class MinGruConfig(MixerConfig):
    """The record of a minGRU layer with as many units as the model is wide."""

    name: ClassVar[str] = "min_gru"

    initial: InitConfig = field(default_factory=InitConfig)

    def module(self, execution, *, causal, name=None):
        if not causal:
            raise ConfigError(
                "mixer.name='min_gru': reads from left to right, and an encoder both ways; use a"
                " decoder."
            )
        return MinGru(self, execution, name=name)

    def init_cache(self, batch, length, d_model, dtype):
        return empty_state([d_model], batch, length, dtype)

    def prepare(self, context, x_BTD, execution, *, causal, tables):
        return with_documents(context, x_BTD, causal=causal)


class MinGru(nn.Module):
    """h_t = (1 - z_t) h_{t-1} + z_t W x_t, with z_t = sigmoid(W_z x_t)."""

    cfg: MinGruConfig
    execution: Execution

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: Context, cache: StateCache | None = None):
        width = x_BTD.shape[-1]
        sizes = {"D": width, "Z": 2, "U": width}
        both_BTZU = Einsum(
            "BTD,DZU->BTZU", sizes, True, self.cfg.initial, self.execution, name="input"
        )(x_BTD)
        z_BTU = jax.nn.sigmoid(both_BTZU[:, :, 0])
        new_BTU = both_BTZU[:, :, 1]
        keeps_BTU = 1 - z_BTU  # h_t = keeps_t h_{t-1} + adds_t
        adds_BTU = z_BTU * new_BTU
        if context.keep_BT is not None:
            keeps_BTU = jnp.where(context.keep_BT[..., None], keeps_BTU, 1)
            adds_BTU = jnp.where(context.keep_BT[..., None], adds_BTU, 0)
        if context.starts_BT is not None:
            keeps_BTU = jnp.where(context.starts_BT[..., None], 0, keeps_BTU)
        if cache is not None:
            before_BU = jnp.where(context.index == 0, 0, cache.state[0])
            adds_BTU = adds_BTU.at[:, 0].add(keeps_BTU[:, 0] * before_BU)
        _, h_BTU = jax.lax.associative_scan(
            lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (keeps_BTU, adds_BTU), axis=1
        )
        if cache is None:
            return h_BTU
        return h_BTU, cache.replace(
            state=(h_BTU[:, -1],), length=context.index + jnp.int32(x_BTD.shape[1])
        )
