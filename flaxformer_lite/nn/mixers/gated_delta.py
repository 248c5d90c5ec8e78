"""Gated DeltaNet: a recurrent layer whose state is a matrix of keys and values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, NormConfig, OneOf, choices, parts, rules
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.functions.delta_rule import gated_delta_rule
from flaxformer_lite.nn.mixers.recurrent import begin_recurrence, convolve_last, finish_recurrence
from flaxformer_lite.nn.modules import cache as caches
from flaxformer_lite.nn.modules.cache import StateCache
from flaxformer_lite.nn.modules.context import Context, ContextLayer
from flaxformer_lite.nn.modules.documents import StateReader
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.norms import Norm

LENGTH_EPS = 1e-6  # added to the squared length of queries and keys
# initial rates of forgetting, uniform between them; 0 would never forget
MAX_INITIAL_RATE = 16.0
MIN_INITIAL_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class GatedDeltaConfig(StateReader):
    """The record of a GatedDelta layer; its defaults are Qwen3-Next's.

    Attributes:
      key_heads: heads of queries and keys.
      value_heads: heads of values and of the state; a multiple of key_heads.
      key_dim, value_dim: width of one head.
      taps: tokens that the convolution of queries, keys and values sums.
      activation: after the convolution.
      norm_eps: added to the mean square of an output head.

    Reference: Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks: Improving Mamba2 with Delta
    Rule" (arXiv:2412.06464).
    """

    name: ClassVar[str] = "delta"

    key_heads: rules.Size = 16
    value_heads: rules.Size = 32
    key_dim: rules.Size = 128
    value_dim: rules.Size = 128
    taps: rules.Size = 4
    activation: Annotated[str, OneOf(choices.ACTIVATIONS)] = "silu"
    norm_eps: rules.NotNegative = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_heads % self.key_heads:
            raise ConfigError(
                f"value_heads={self.value_heads}, key_heads={self.key_heads}: value heads must be a"
                " multiple of key heads."
            )

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution reads: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def states(self) -> tuple[int, int]:
        """Numbers in the convolution's last inputs, and in the matrices."""
        matrix = self.value_heads * self.key_dim * self.value_dim
        return (self.taps - 1) * self.channels, matrix

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        if not causal:
            raise ConfigError(
                "mixer.name='gated_delta': reads from left to right; use it in a decoder, and"
                " attention in an encoder."
            )
        return GatedDelta(self, execution, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        return (
            (rf"{self.name}/(query|key|value|gate|rate|decay)/kernel$", ("fsdp", None, None)),
            (rf"{self.name}/out/kernel$", (None, "fsdp")),
            (rf"{self.name}/(taps|log_decay|decay_bias)$", ()),
        )

    def init_cache(self, batch: int, length: int, d_model: int, dtype: DTypeLike) -> StateCache:
        """Builds an empty cache, in float32 for any dtype: its errors would add up."""
        return caches.empty_state(self.states, batch, length, jnp.float32)


class GatedDelta(ContextLayer):
    """y = W (norm(o) silu(z)), where o is what the gated delta rule reads for each token.

    Queries, keys and values pass a causal convolution over a few tokens; queries and keys then have
    length one. How much a token writes (b) and how much is forgotten before (a) are functions of
    it:

    b = sigmoid(W_b x),  log a = -exp(log_decay) softplus(W_a x + decay_bias)

    Padding is read as zeros, writes nothing and forgets nothing.
    """

    cfg: GatedDeltaConfig
    execution: Execution = Execution()
    # (queries, keys, values, log decays, rates, state, starts) -> outputs and state
    rule: ClassVar[Callable[..., tuple[jax.Array, jax.Array]]] = staticmethod(gated_delta_rule)

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: StateCache | None
    ) -> tuple[jax.Array, StateCache | None]:
        cfg = self.cfg
        x_BTD, context, (last_BU, matrix_BU) = begin_recurrence(
            cfg, self.execution, x_BTD, context, cache, cfg.states, causal=True
        )
        batch, length, width = x_BTD.shape
        kept_BT = context.keep_BT
        if kept_BT is not None:
            x_BTD = jnp.where(kept_BT[..., None], x_BTD, 0)
        dtype = jnp.dtype(self.execution.param_dtype)
        heads = cfg.value_heads
        log_decay_N = self.param("log_decay", _log_decays, (heads,), dtype).astype(jnp.float32)
        bias_N = self.param("decay_bias", nn.initializers.ones, (heads,), dtype)
        joined = [self._project(name, x_BTD) for name in ("query", "key", "value")]
        mixed_BTU = jnp.concatenate([x.reshape(batch, length, -1) for x in joined], axis=-1)
        mixed_BTU, last_BU = convolve_last(self, cfg.taps, mixed_BTU, last_BU, context)
        mixed_BTU = ACTIVATIONS[cfg.activation](mixed_BTU)
        sizes = cfg.key_heads * cfg.key_dim
        q_BTU, k_BTU, v_BTU = jnp.split(mixed_BTU, [sizes, 2 * sizes], axis=-1)
        q_BTNH = self._of_heads(q_BTU) * cfg.key_dim**-0.5
        rate_BTN = jax.nn.sigmoid(self._project("rate", x_BTD).reshape(batch, length, heads))
        step_BTN = self._project("decay", x_BTD).reshape(batch, length, heads).astype(jnp.float32)
        step_BTN = jax.nn.softplus(step_BTN + bias_N.astype(jnp.float32)[None, None])
        decay_BTN = -jnp.exp(log_decay_N)[None, None] * step_BTN
        if kept_BT is not None:
            rate_BTN = jnp.where(kept_BT[..., None], rate_BTN, 0)
            decay_BTN = jnp.where(kept_BT[..., None], decay_BTN, 0)
        out_BTNF, matrix_BNHF = self.rule(
            q_BTNH,
            self._of_heads(k_BTU),
            v_BTU.reshape(batch, length, heads, cfg.value_dim),
            decay_BTN,
            rate_BTN,
            matrix_BU.reshape(batch, heads, cfg.key_dim, cfg.value_dim),
            context.starts_BT,
        )
        norm = Norm(NormConfig(kind="rms", eps=cfg.norm_eps), self.execution, name="norm")
        gate_BTNF = self._project("gate", x_BTD).astype(jnp.float32)
        normed_BTNF = norm(out_BTNF.astype(x_BTD.dtype)).astype(jnp.float32)
        out_BTNF = normed_BTNF * jax.nn.silu(gate_BTNF)
        out_BTU = out_BTNF.astype(x_BTD.dtype).reshape(batch, length, -1)
        out = Einsum(
            "BTU,UD->BTD",
            {"U": out_BTU.shape[-1], "D": width},
            initial=cfg.initial,
            execution=self.execution,
            residual=True,
            name="out",
        )
        state = last_BU.astype(jnp.float32), matrix_BNHF.reshape(batch, -1)
        return finish_recurrence(out(out_BTU), context, cache, state)

    def _project(self, name: str, x_BTD: jax.Array) -> jax.Array:
        """Projects to heads; one number for each head is grouped by key head."""
        cfg = self.cfg
        sizes = {"D": x_BTD.shape[-1], "K": cfg.key_heads, "N": cfg.value_heads}
        sizes |= {"H": cfg.key_dim, "F": cfg.value_dim, "G": cfg.value_heads // cfg.key_heads}
        equations = {"query": "KH", "key": "KH", "value": "NF", "gate": "NF"}
        letters = equations.get(name, "KG")
        return Einsum(
            f"BTD,D{letters}->BT{letters}",
            sizes,
            initial=cfg.initial,
            execution=self.execution,
            name=name,
        )(x_BTD)

    def _of_heads(self, x_BTU: jax.Array) -> jax.Array:
        """Returns queries or keys of length one for each value head, float32 [B, T, N, H]."""
        cfg = self.cfg
        x_BTKH = x_BTU.astype(jnp.float32).reshape(*x_BTU.shape[:2], cfg.key_heads, cfg.key_dim)
        squares_BTK1 = jnp.sum(x_BTKH * x_BTKH, axis=-1, keepdims=True)
        x_BTKH = x_BTKH * jax.lax.rsqrt(squares_BTK1 + LENGTH_EPS)
        return jnp.repeat(x_BTKH, cfg.value_heads // cfg.key_heads, axis=2)


def _log_decays(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Draws the logarithms of rates of forgetting."""
    rates = jax.random.uniform(key, shape, jnp.float32, MIN_INITIAL_RATE, MAX_INITIAL_RATE)
    return jnp.log(rates).astype(dtype)
