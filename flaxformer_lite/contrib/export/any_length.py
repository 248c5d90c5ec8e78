"""Parts of models in a form that one file computes for rows of any length.

`jax.export` and ONNX cannot cut a length that is a symbol into blocks, loop over chunks of it, or
round its multiples as Python does. These forms compute the same numbers, at every length, from all
pairs of tokens or token by token.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, ModelConfig
from flaxformer_lite.nn.feed_forwards.capacity_moe import CapacityMoeConfig
from flaxformer_lite.nn.feed_forwards.moe import Matrices, MoeConfig, hidden_of_experts
from flaxformer_lite.nn.functions import block_local, kernels
from flaxformer_lite.nn.functions.recurrent import RecurrentState, scan_cell
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.nn.mixers.block_sparse import BlockSparse, BlockSparseConfig
from flaxformer_lite.nn.mixers.gated_delta import GatedDelta, GatedDeltaConfig
from flaxformer_lite.nn.mixers.local_global import (
    LocalGlobal,
    LocalGlobalConfig,
    SumLogits,
    Sums,
)
from flaxformer_lite.nn.modules.documents import Documents
from flaxformer_lite.nn.positions.encoding import Tables

MOST_PARTS = 1024  # of a token, in which a file counts the capacity of an expert


def for_any_length(cfg: ModelConfig) -> ModelConfig:
    """Returns the config with the parts that compute rows of any length."""
    pattern = []
    for kind in cfg.pattern:
        changed = {name: _converted(getattr(kind, name)) for name in PARTS_OF_LAYERS}
        pattern.append(dataclasses.replace(kind, **changed))
    return dataclasses.replace(
        cfg,
        mixer=_converted(cfg.mixer),
        feed_forward=_converted(cfg.feed_forward),
        pattern=tuple(pattern),
    )


def _converted(record: Any) -> Any:
    if type(record) not in RECORDS:
        return record
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return RECORDS[type(record)](**fields)


@dataclass(frozen=True, kw_only=True)
class AnyLengthLocalGlobalConfig(LocalGlobalConfig):
    """The record of `LocalGlobal` for any length."""

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        if causal:
            return super().module(execution, causal=True, name=name)
        return AnyLengthLocalGlobal(self.attention, execution, record=self, name=name)


class AnyLengthLocalGlobal(LocalGlobal):
    """`LocalGlobal` over rows of one document, by the scores of all pairs of tokens."""

    @nn.nowrap
    def sums_of(self, documents: Documents) -> Sums:
        kept_BT = documents.kept_BT
        # ONNX has no maximum over time, and jax2onnx no remainder of symbols.
        position_1T = jnp.arange(kept_BT.shape[1], dtype=jnp.int32)[None]
        number_1T = jax.lax.div(position_1T, jnp.full_like(position_1T, self.record.global_block))
        last_1T = number_1T * self.record.global_block + (self.record.global_block - 1)
        is_end_BT = kept_BT & (position_1T == last_1T)
        count_B1 = is_end_BT.sum(axis=1, keepdims=True, dtype=jnp.int32)
        own_BT = jnp.where(kept_BT & (count_B1 > 0), jnp.minimum(number_1T, count_B1 - 1), -1)
        return Sums(own_BT, jnp.zeros_like(own_BT), jnp.where(kept_BT, count_B1, 0))

    @nn.nowrap
    def add_up(self, x_BTD: jax.Array, sums: Sums) -> jax.Array:
        numbers_Q = jnp.arange(x_BTD.shape[1])[
            :: self.record.global_block
        ]  # perhaps one more than sums
        numbers_Q = jax.lax.div(numbers_Q, jnp.full_like(numbers_Q, self.record.global_block))
        is_own_BTQ = sums.own_BT[..., None] == numbers_Q[None, None]
        sums_BQD = jnp.einsum("BTQ,BTD->BQD", is_own_BTQ.astype(jnp.float32), x_BTD)
        return sums_BQD.astype(x_BTD.dtype)

    @nn.nowrap
    def attend_in_blocks(
        self,
        q_BTNH: jax.Array,
        k_BSKH: jax.Array,
        v_BSKH: jax.Array,
        documents: Documents,
        tables: Tables | None,
        logits: SumLogits | None,
        sums: Sums | None,
    ) -> jax.Array:
        batch, length, heads, _ = q_BTNH.shape
        kept_BT = documents.kept_BT
        row_T = jnp.arange(length, dtype=jnp.int32)
        is_near_TT = jnp.abs(row_T[:, None] - row_T[None, :]) <= self.record.radius
        visible_BTS = kept_BT[:, :, None] & kept_BT[:, None, :] & is_near_TT[None]
        bias_BNTS = jnp.zeros((batch, heads, length, length), jnp.float32)
        bias_NTT = self.token_bias(tables, row_T, row_T)
        if bias_NTT is not None:
            bias_BNTS += bias_NTT.astype(jnp.float32)[None]
        if logits is not None and sums is not None:
            more_BNTS, seen_BTS = logits(sums)
            shape = (batch, heads, *seen_BTS.shape[1:])
            more_BNTS = jnp.broadcast_to(more_BNTS.astype(jnp.float32), shape)
            bias_BNTS = jnp.concatenate([bias_BNTS, more_BNTS], axis=-1)
            visible_BTS = jnp.concatenate([visible_BTS, seen_BTS], axis=-1)
        scores_BNTS = kernels.dot_products(q_BTNH, k_BSKH) * self.scale_of(q_BTNH)
        if self.cfg.softcap:
            scores_BNTS = self.cfg.softcap * jnp.tanh(scores_BNTS / self.cfg.softcap)
        weights_BNTS = kernels.softmax(scores_BNTS + bias_BNTS, visible_BTS)
        return kernels.pool(weights_BNTS, v_BSKH)


@dataclass(frozen=True, kw_only=True)
class AnyLengthBlockSparseConfig(BlockSparseConfig):
    """The record of `BlockSparse` for any length."""

    def is_plain(self, length: int) -> bool:
        return False

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        return AnyLengthBlockSparse(self.attention, execution, causal, record=self, name=name)


class AnyLengthBlockSparse(BlockSparse):
    """Plain attention up to `full_length` tokens and block-sparse beyond, by all pairs of tokens.

    A token is weighted by how often it is seen, which is 0 for most of a long row.
    """

    @nn.nowrap
    def attend_in_blocks(
        self,
        q_BTNH: jax.Array,
        k_BTKH: jax.Array,
        v_BTKH: jax.Array,
        kept_BT: jax.Array,
        scale: float,
        dropout: block_local.WeightDropout | None,
    ) -> jax.Array:
        length = q_BTNH.shape[1]
        row_T = jnp.arange(length)
        # jax2onnx has no // of symbols
        block_T = jax.lax.div(row_T, jnp.full_like(row_T, self.record.block))
        is_end_T = (block_T == 0) | (block_T == block_T[-1])
        is_near_TS = jnp.abs(block_T[:, None] - block_T[None, :]) <= 1
        times_TS = jnp.where(is_near_TS | is_end_T[None, :], 1.0, 0.0)
        times_TS = jnp.where((block_T == 0)[None, :], 1.0 + self.record.random_blocks, times_TS)
        is_long = jnp.asarray(length) > self.record.full_length
        times_TS = jnp.where(is_end_T[:, None] | ~is_long, 1.0, times_TS)
        scores_BNTS = kernels.dot_products(q_BTNH, k_BTKH) * scale
        if self.cfg.softcap:
            scores_BNTS = self.cfg.softcap * jnp.tanh(scores_BNTS / self.cfg.softcap)
        scores_BNTS += jnp.log(jnp.maximum(times_TS, 1.0))[None, None]
        visible_BTS = kept_BT[:, None] & (times_TS > 0)[None]
        out_BTNH = kernels.pool(kernels.softmax(scores_BNTS, visible_BTS), v_BTKH)
        is_zero_BT = is_long & ~kept_BT
        return jnp.where(is_zero_BT[..., None, None], 0, out_BTNH)


@dataclass(frozen=True, kw_only=True)
class AnyLengthGatedDeltaConfig(GatedDeltaConfig):
    """The record of `GatedDelta` for any length."""

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        if not causal:
            return super().module(execution, causal=False, name=name)  # which refuses it
        return AnyLengthGatedDelta(self, execution, name=name)


def gated_delta_rule_by_token(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNF: jax.Array,
    log_decay_BTN: jax.Array,
    rate_BTN: jax.Array,
    state_BNHF: jax.Array,
    /,
    starts_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes `gated_delta_rule` token by token, where that goes chunk by chunk."""

    def step(state: RecurrentState, token: tuple) -> RecurrentState:
        k_BNH, v_BNF, log_decay_BN, rate_BN, q_BNH = token
        state_BNHF = state[1] * jnp.exp(log_decay_BN)[..., None, None]
        predicted_BNF = jnp.einsum("bnhf,bnh->bnf", state_BNHF, k_BNH)
        written_BNF = (v_BNF - predicted_BNF) * rate_BN[..., None]
        state_BNHF += k_BNH[..., None] * written_BNF[..., None, :]
        return jnp.einsum("bnhf,bnh->bnf", state_BNHF, q_BNH), state_BNHF

    tokens = (k_BTNH, v_BTNF, log_decay_BTN, rate_BTN, q_BTNH)
    tokens = jax.tree.map(lambda x: x.astype(jnp.float32), tokens)
    batch, _, heads, width = v_BTNF.shape
    nothing_BNF = jnp.zeros((batch, heads, width), jnp.float32)
    state = nothing_BNF, state_BNHF.astype(jnp.float32)
    out_BTNF, (_, state_BNHF) = scan_cell(step, state, tokens, starts_BT)
    return out_BTNF, state_BNHF


class AnyLengthGatedDelta(GatedDelta):
    """`GatedDelta` token by token."""

    rule = staticmethod(gated_delta_rule_by_token)


def mix_all_experts(
    cfg: MoeConfig,
    matrices: Matrices,
    sharding: ActivationSharding,
    x_LD: jax.Array,
    weights_LA: jax.Array,
    chosen_LA: jax.Array,
) -> jax.Array:
    """Computes `mix_sorted` by all experts for each token: ONNX sorts only axes of known length."""

    def times(x_LD: jax.Array, matrix: dict[str, jax.Array]) -> jax.Array:
        y_LXF = jnp.einsum("LD,XDF->LXF", x_LD, matrix["kernel"])
        if "bias" in matrix:
            y_LXF = y_LXF + matrix["bias"][None]
        return y_LXF

    up_LXF = times(x_LD, matrices["up"])
    gate_LXF = None
    if cfg.expert.gated:
        gate_LXF = times(x_LD, matrices["gate"])
    h_LXF = hidden_of_experts(cfg, up_LXF, gate_LXF)
    y_LXD = jnp.einsum("LXF,XFD->LXD", h_LXF, matrices["down"]["kernel"])
    experts = matrices["down"]["kernel"].shape[0]
    chosen_LAX = jax.nn.one_hot(chosen_LA, experts, dtype=y_LXD.dtype)
    weights_LX = jnp.einsum("LAX,LA->LX", chosen_LAX, weights_LA.astype(y_LXD.dtype))
    return jnp.einsum("LXD,LX->LD", y_LXD, weights_LX)


@dataclass(frozen=True, kw_only=True)
class AnyLengthCapacityMoeConfig(CapacityMoeConfig):
    """The record of `CapacityMoe` for groups of any number of tokens."""

    mix = mix_all_experts

    def expert_capacity(self, tokens: Any, *, training: bool) -> int | jax.Array:
        """Returns the capacity at inference in whole numbers, rounded as Python's floats are.

        Raises:
          ConfigError: the factor is not a fraction of a power of two.
        """
        if isinstance(tokens, int):
            return super().expert_capacity(tokens, training=training)
        if self.capacity and not self.eval_fraction:
            return self.capacity
        factor = self.eval_fraction or self.factor(training=training)
        top, bottom = float(factor).as_integer_ratio()
        if bottom > MOST_PARTS:
            raise ConfigError(
                f"eval_fraction={self.eval_fraction},"
                f" eval_capacity_factor={self.eval_capacity_factor}: an expert's capacity would not"
                " be rounded alike for all numbers of tokens; set a factor such as 1, 1.25 or 2."
            )
        if self.eval_fraction:
            return jnp.asarray((top * tokens + bottom - 1) // bottom)
        bottom *= self.num_experts
        room = jnp.asarray((2 * top * tokens + bottom) // (2 * bottom))  # half a token rounds up
        is_half = jnp.asarray((2 * top * tokens + bottom) % (2 * bottom)) == 0
        return jnp.maximum(1, jnp.where(is_half & (room % 2 == 1), room - 1, room))


@dataclass(frozen=True, kw_only=True)
class AnyLengthMoeConfig(MoeConfig):
    """The record of `Moe` for any number of tokens."""

    mix = mix_all_experts


PARTS_OF_LAYERS = ("mixer", "feed_forward", "beside")
RECORDS: dict[type, type] = {
    LocalGlobalConfig: AnyLengthLocalGlobalConfig,
    BlockSparseConfig: AnyLengthBlockSparseConfig,
    GatedDeltaConfig: AnyLengthGatedDeltaConfig,
    MoeConfig: AnyLengthMoeConfig,
    CapacityMoeConfig: AnyLengthCapacityMoeConfig,
}
