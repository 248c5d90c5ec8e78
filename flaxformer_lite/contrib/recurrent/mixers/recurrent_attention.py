"""A recurrent decoder layer whose state attends to the encoder's output.

Scores are additive or multiplicative.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, OneOf, parts, plugin_name
from flaxformer_lite.contrib.recurrent.cells import recurrent, scan_cell
from flaxformer_lite.contrib.recurrent.layer import RecurrentConfig, declare_cell, read_tokens
from flaxformer_lite.contrib.recurrent.mixers.gru import GruConfig
from flaxformer_lite.contrib.recurrent.mixers.lstm import LstmConfig
from flaxformer_lite.contrib.recurrent.mixers.rnn import RnnConfig
from flaxformer_lite.nn.attentions.arguments import check_mask
from flaxformer_lite.nn.functions import kernels, masks
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.mixers.recurrent import RecurrentState, begin_recurrence, finish_recurrence
from flaxformer_lite.nn.modules import cache as caches
from flaxformer_lite.nn.modules.cache import StateCache
from flaxformer_lite.nn.modules.context import Context, ContextLayer
from flaxformer_lite.nn.modules.einsum import Einsum, make_initializer

CELLS: dict[str, type[RecurrentConfig]] = {"rnn": RnnConfig, "lstm": LstmConfig, "gru": GruConfig}
Attend = Callable[[jax.Array, jax.Array | None], jax.Array]


@dataclass(frozen=True, kw_only=True)
class RecurrentAttentionConfig(RecurrentConfig):
    """The record of a RecurrentAttention layer.

    Attributes:
      cell: the recurrent cell.
      score: of a state s and an encoder output e; `additive`, v . tanh(W s + U e) (Bahdanau et al.
        2015), or `multiplicative`, s . U e (Luong et al. 2015, "general").
      query: the state that attends; `previous`, and what it finds is an input of the cell
        (Bahdanau), which runs attention token by token; or `current`, after the cell (Luong), all
        tokens at once.
    """

    name: ClassVar[str] = "attentive"  # in the paths of parameters
    reads_source: ClassVar[bool] = True

    cell: Annotated[str, OneOf(tuple(CELLS))] = "gru"
    score: Annotated[str, OneOf(("additive", "multiplicative"))] = "additive"
    query: Annotated[str, OneOf(("previous", "current"))] = "previous"

    @property
    def inner(self) -> RecurrentConfig:
        """The record of the cell."""
        return CELLS[self.cell](units=self.units, initial=self.initial)

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        if not causal:
            raise ConfigError(
                f"mixer.name={plugin_name(self)!r}: attends to an encoder's output from a decoder;"
                " set it as decoder_mixer."
            )
        return RecurrentAttention(self, execution, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        return (
            (rf"{self.name}/(input|context)/kernel$", ("fsdp", None, None)),
            (rf"{self.name}/((key|query|score|out)/)?(kernel|bias)$", ()),
        )

    def init_cache(self, batch: int, length: int, d_model: int, dtype: DTypeLike) -> StateCache:
        extra = [d_model] if self.query == "previous" else []
        return caches.empty_state(
            [self.width(d_model, causal=True)] * self.inner.states + extra, batch, length, dtype
        )


class RecurrentAttention(ContextLayer):
    """y_t = tanh(W [s_t; c_t]) with the state s_t of a recurrent cell.

    c_t is the weighted mean of the encoder's outputs.

    s_t = cell(s_{t-1}, x_t, c_t), c_t attended by s_{t-1}      if cfg.query is previous
    s_t = cell(s_{t-1}, x_t),      c_t attended by s_t          if it is current

    The state starts at zero. Bahdanau et al. start from the encoder's and read out by maxout, Luong
    et al. start from the encoder's and may feed y_{t-1} back.

    Reference: Bahdanau et al. 2015 (arXiv:1409.0473); Luong et al. 2015, section 3.1
    (arXiv:1508.04025).
    """

    cfg: RecurrentAttentionConfig
    execution: Execution = Execution()

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: StateCache | None
    ) -> tuple[jax.Array, StateCache | None]:
        cfg = self.cfg
        run = self.execution
        width = x_BTD.shape[-1]
        units = cfg.width(width, causal=True)
        loops = cfg.query == "previous"
        sizes = [units] * cfg.inner.states + [width] * loops
        x_BTD, context, state = begin_recurrence(
            cfg, run, x_BTD, context, cache, sizes, causal=True
        )
        gates_BTZU, step = declare_cell(self, cfg.inner, run, units, x_BTD)
        attend, visible_BTS, cache = self._source(x_BTD, context, cache, units)
        if loops:
            kernel_DZU = Kernel("DZU", (width, cfg.inner.gates, units), cfg, run, name="context")(
                x_BTD
            )

            def read(
                state: RecurrentState, token: tuple[jax.Array, jax.Array | None]
            ) -> RecurrentState:
                gates_BZU, visible_BS = token
                seen_B1S = None if visible_BS is None else visible_BS[:, None]
                found_BD = attend(state[0][:, None], seen_B1S)[:, 0]
                # The context is in the state only so that `output` can return it.
                return *step(state[:-1], gates_BZU + recurrent(found_BD, kernel_DZU)), found_BD

            both, state = scan_cell(
                read,
                state,
                (gates_BTZU, visible_BTS),
                context.starts_BT,
                context.keep_BT,
                output=lambda s: (s[0], s[-1]),
            )
        else:
            s_BTU, state = read_tokens(run, step, state, gates_BTZU, context)
            both = s_BTU, attend(s_BTU, visible_BTS)
        joined_BTU = jnp.concatenate(both, axis=-1)
        out = Einsum(
            "BTU,UD->BTD",
            {"U": units + width, "D": width},
            initial=cfg.initial,
            execution=run,
            name="out",
        )
        return finish_recurrence(jnp.tanh(out(joined_BTU)), context, cache, state)

    def _source(
        self, x_BTD: jax.Array, context: Context, cache: StateCache | None, units: int
    ) -> tuple[Attend, jax.Array | None, StateCache | None]:
        """Returns what attention to the source needs.

        That is the attention of states [B, T, U] to it, the same for all tokens, and the cache that
        keeps the source's keys.
        """
        cfg = self.cfg
        run = self.execution
        values_BSD = context.encoder_output_BSD
        if values_BSD is not None:
            sizes = {"D": values_BSD.shape[-1], "U": units}
            keys_BSU = Einsum("BSD,DU->BSU", sizes, initial=cfg.initial, execution=run, name="key")(
                values_BSD
            )
        elif cache is None or cache.cross_k_BKSH is None or cache.cross_v_BKSH is None:
            raise ConfigError(
                "encoder_output_BSD=None: a recurrent layer with attention reads an encoder's"
                " output; pass it, or a cache that has read it, in an encoder-decoder."
            )
        else:
            keys_BSU = cache.cross_k_BKSH[:, 0]
            values_BSD = cache.cross_v_BKSH[:, 0]
        if cache is not None:
            cache = cache.replace(cross_k_BKSH=keys_BSU[:, None], cross_v_BKSH=values_BSD[:, None])
        score: Callable[..., jax.Array] = kernels.dot_products
        query_UU = None
        if cfg.score == "additive":
            weights_1U = Kernel("1U", (1, units), cfg, run, name="score")(keys_BSU)
            query_UU = Kernel("UU", (units, units), cfg, run, name="query")(keys_BSU)
            score = functools.partial(kernels.additive_scores, weights_NH=weights_1U)
        mask = context.cross_mask
        visible_BTS = None
        B, T = x_BTD.shape[:2]
        S = keys_BSU.shape[1]
        if mask is not None:
            check_mask(mask, B, T, S)
            seen = mask if isinstance(mask, Mask) else masks.dense(mask)
            visible_BTS = jnp.broadcast_to(seen.dense(T, S), (B, T, S))
        attend = functools.partial(_attend, keys_BSU, values_BSD, score=score, query_UU=query_UU)
        return attend, visible_BTS, cache


def _attend(
    keys_BSU: jax.Array,
    values_BSD: jax.Array,
    state_BTU: jax.Array,
    visible_BTS: jax.Array | None,
    *,
    score: Callable[..., jax.Array],
    query_UU: jax.Array | None,
) -> jax.Array:
    q_BTU = state_BTU if query_UU is None else state_BTU @ query_UU
    arrays = (x[:, :, None] for x in (q_BTU, keys_BSU, values_BSD))
    return kernels.kernel_attention(*arrays, score=score, visible_BTS=visible_BTS)[:, :, 0]


class Kernel(nn.Module):
    """A single weight, for products inside a loop, in which no module can be called."""

    letters: str
    shape: tuple[int, ...]
    cfg: RecurrentAttentionConfig
    execution: Execution

    @nn.compact
    def __call__(self, like: jax.Array) -> jax.Array:
        init = make_initializer(self.cfg.initial, self.shape[0], self.shape[-1])
        return self.param("kernel", init, self.shape, jnp.dtype(self.execution.param_dtype)).astype(
            like.dtype
        )
