"""A recurrent language model, written outside the package: an LSTM in place of attention, with a cache for writing.

    python train.py --config=gpt2_tiny:nope --workdir=runs/lstm --config.model.mixer.name=examples.lstm:LstmConfig

The state is reset at each document of a packed row and skips padding, so nothing leaks from one document to the next.

Reference: Hochreiter and Schmidhuber 1997, "Long Short-Term Memory"; forget gates, Gers et al. 2000.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite import Context, Execution
from flaxformer_lite.config import ConfigError, InitConfig
from flaxformer_lite.config.parts import MixerConfig
from flaxformer_lite.modules.einsum import Einsum


@flax.struct.dataclass
class LstmCache:
    """The state after the last token read.

    Attributes:
      h_BD, c_BD: output and cell.
      length: int32 scalar, the number of tokens read so far.
    """

    h_BD: jax.Array
    c_BD: jax.Array
    length: jax.Array


@dataclass(frozen=True, kw_only=True)
class LstmConfig(MixerConfig):
    """The record of an LSTM layer with as many units as the model is wide."""

    name: ClassVar[str] = "lstm"

    initial: InitConfig = field(default_factory=InitConfig)

    def module(self, execution, *, causal, name=None):
        if not causal:
            raise ConfigError(
                "mixer.name='lstm': reads from left to right, but an encoder looks both ways; use a decoder."
            )
        return Lstm(self, execution, name=name)

    def init_cache(self, batch, length, d_model, dtype):
        return LstmCache(jnp.zeros((batch, d_model), dtype), jnp.zeros((batch, d_model), dtype), np.zeros((), np.int32))


class Lstm(nn.Module):
    """c = f c + i g, h = o tanh(c), with gates i, f, g, o of the input and the last h."""

    cfg: LstmConfig
    execution: Execution

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: Context | None = None, cache: LstmCache | None = None):
        width = x_BTD.shape[-1]
        sizes = {"D": width, "G": 4 * width}
        gates_BTG = Einsum("BTD,DG->BTG", sizes, True, self.cfg.initial, self.execution, name="input")(x_BTD)
        kernel_DG = self.param("recurrent", nn.initializers.orthogonal(), (width, 4 * width), jnp.float32)
        kernel_DG = kernel_DG.astype(x_BTD.dtype)

        def step(state, token):
            (h_BD, c_BD), (gates_BG, starts_B1, keep_B1) = state, token
            fresh = (jnp.where(starts_B1, 0, h_BD), jnp.where(starts_B1, 0, c_BD))
            i, f, g, o = jnp.split(gates_BG + fresh[0] @ kernel_DG, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * fresh[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            state = (jnp.where(keep_B1, h, h_BD), jnp.where(keep_B1, c, c_BD))
            return state, state[0]

        zeros_BD = jnp.zeros((x_BTD.shape[0], width), x_BTD.dtype)
        state = (zeros_BD, zeros_BD) if cache is None else (cache.h_BD, cache.c_BD)
        starts_BT1, keep_BT1 = _marks(x_BTD, context or Context())
        tokens = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (gates_BTG, starts_BT1, keep_BT1))
        (h_BD, c_BD), h_TBD = jax.lax.scan(step, state, tokens)
        y_BTD = jnp.swapaxes(h_TBD, 0, 1)
        return (
            y_BTD
            if cache is None
            else (y_BTD, LstmCache(h_BD, c_BD, jnp.asarray(cache.length + x_BTD.shape[1], jnp.int32)))
        )


def _marks(x_BTD: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
    """Marks where documents start, and which tokens are not padding: bool [B, T, 1]."""
    shape = x_BTD.shape[:2]
    keep_BT = jnp.ones(shape, bool) if context.keep_BT is None else jnp.broadcast_to(context.keep_BT, shape)
    if context.segment_ids_BT is None:
        return jnp.zeros((*shape, 1), bool), keep_BT[..., None]
    ids_BT = jnp.broadcast_to(context.segment_ids_BT, shape)
    before_BT = jnp.concatenate([jnp.zeros_like(ids_BT[:, :1]), ids_BT[:, :-1]], axis=1)
    return (ids_BT != before_BT)[..., None], (keep_BT & (ids_BT > 0))[..., None]
