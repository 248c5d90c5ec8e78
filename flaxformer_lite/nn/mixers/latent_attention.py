"""Attention with keys and values projected from a latent vector per token (DeepSeek's MLA)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, NormConfig, parts, rules
from flaxformer_lite.nn.attentions.arguments import Arguments, check_mask
from flaxformer_lite.nn.functions.checkpoint_names import OUT, QKV, named
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.functions.rotary import Phase, rotate
from flaxformer_lite.nn.functions.sharding import adapter_of, sharding_of
from flaxformer_lite.nn.functions.tpu_tuning import materialize
from flaxformer_lite.nn.mixers.attention import (
    OUT_BIAS,
    OUT_WEIGHT,
    Attention,
    AttentionConfig,
    AttentionVariantConfig,
    or_arange,
)
from flaxformer_lite.nn.modules import cache as caches, kv_cache
from flaxformer_lite.nn.modules.cache import LayerCache, LayerOutput
from flaxformer_lite.nn.modules.context import Context, with_options
from flaxformer_lite.nn.modules.dropout import dropout_of_weights
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.nn.positions.encoding import Tables, hooks


@dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig(AttentionVariantConfig):
    """The record of a LatentAttention; its defaults are those of DeepSeek-V3.

    A head's queries and keys have two parts: one that depends on the text alone, and one that turns
    with the position, which all heads share among their keys.

    Attributes:
      kv_rank: E, the width of the latent vector that keys and values are made of.
      q_rank: the same of queries; 0 makes them of the layer's input.
      content_dim: width of a head's part without positions.
      rotary_dim: width of the part that the position turns.
      value_dim: width of a head's values.
      norm_eps: of the norms of the latent vectors.
      attention: the layer that it replaces: its heads, position, biases and scale; in a model, what
        the config describes. `key` in its biases is that of the latent vector and of the part
        that turns, `query` that of the latent vector of queries.
    """

    low_precision: ClassVar[tuple[str, ...]] = ("quantize",)

    kv_rank: rules.Size = 512
    q_rank: rules.Count = 1536
    content_dim: rules.Size = 128
    rotary_dim: rules.Size = 64
    value_dim: rules.Size = 128
    norm_eps: rules.NotNegative = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        record = self.attention
        unread = {
            "num_kv_heads": record.kv_heads != record.num_heads,
            "attention_softcap": record.softcap,
            "qk_norm": record.qk_norm,
            "qkv_clip": record.clip,
            "attention_gate": record.gate,
            "attention_sinks": record.sinks,
            "position": "bias" in hooks(record.position),
        }
        for name, is_set in unread.items():
            if is_set:
                raise ConfigError(
                    f"{name}, in a layer with mixer.name='latent_attention': all heads share a"
                    " latent vector, and only rotary positions turn a part of them; leave it out,"
                    " or use attention."
                )

    @property
    def standard(self) -> AttentionConfig:
        """The record of its heads, as wide as the part that turns."""
        return dataclasses.replace(self.attention, head_dim=self.rotary_dim)

    @property
    def head_dim(self) -> int:
        """Width of a head's queries and keys."""
        return self.content_dim + self.rotary_dim

    def table_sizes(self, d_model: int) -> parts.TableSizes:
        return self.standard.table_sizes(d_model)

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        return LatentAttention(self.standard, execution, causal, latent=self, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        bias = self.attention.bias
        down = "latent|rotary_key"
        query = (r"attention/query/kernel$", ("fsdp", "tensor", None))
        rules: parts.PartitionRules = (
            query,
            (rf"attention/({down})/kernel$", ("fsdp", None)),
            (r"attention/(key|value)/kernel$", ("fsdp", "tensor", None)),
            *OUT_WEIGHT,
        )
        if self.q_rank:
            rules += ((r"attention/query_latent/kernel$", ("fsdp", None)),)
        if "query" in bias:
            split = () if self.q_rank else ("tensor", None)
            rules += ((r"attention/query(_latent)?/bias$", split),)
        if "key" in bias:
            rules += ((rf"attention/({down})/bias$", ()),)
        if "out" in bias:
            rules += OUT_BIAS
        return rules

    def init_cache(self, batch: int, length: int, d_model: int, dtype: DTypeLike) -> LayerCache:
        """Builds a cache of the parts that all heads share: E + rotary_dim numbers a token."""
        return caches.empty(
            batch,
            1,
            length,
            self.rotary_dim,
            dtype,
            window=self.attention.window,
            value_dim=self.kv_rank,
        )

    def prepare(
        self,
        context: Context,
        x_BTD: jax.Array,
        execution: Execution,
        *,
        causal: bool,
        tables: Callable[..., Tables],
    ) -> Context:
        return self.standard.prepare(context, x_BTD, execution, causal=causal, tables=tables)


class LatentAttention(Attention):
    """Attention to keys and values that are made of a latent vector c of each token.

    c = norm(W_c x),  k_n = [K_n c; turned(W_r x)],  v_n = V_n c

    Queries may pass a latent vector of their own. A cache holds c and the turned part alone. From
    its second call on no keys are made: K_n is multiplied with the query instead,
    q . K_n c = (K_n^T q) . c, and V_n with the weighted mean of c, which is the same but for
    rounding.

    Attributes:
      latent: the sizes; `cfg` has the heads, the scale and the position.

    Reference: DeepSeek-AI 2024, "DeepSeek-V2" (arXiv:2405.04434), section 2.1 and appendix C.
    """

    latent: LatentAttentionConfig = LatentAttentionConfig()

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        context: Context | None = None,
        cache: LayerCache | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> LayerOutput:
        """Returns y [B, T, D], or (y, cache) if a cache was passed."""
        context = with_options(context, x_BTD, cache, mask=mask, position_ids_BT=position_ids)
        x_BTD = self._check_cache(x_BTD, context, cache)
        phase = self._phase(context, cache, x_BTD)
        content_BTNH, turning_BTNH = self._queries(x_BTD, phase)
        turning_BS1H = self._down("rotary_key", x_BTD, self.latent.rotary_dim)[:, :, None]
        turning_BS1H = _turned(turning_BS1H, phase)
        c_BSE = self._down("latent", x_BTD, self.latent.kv_rank)
        c_BSE = self._latent_norm("latent_norm", c_BSE)
        key = self._up("key", self.latent.content_dim)
        value = self._up("value", self.latent.value_dim)
        kept = cache
        q_index = k_index = None
        if kept is not None:
            caches.check_window(kept, self.cfg.window)
            grown = kv_cache.extend(
                kept, turning_BS1H, c_BSE[:, :, None], context.index, first=context.first
            )
            kept, turning_BS1H, c_BS1E, q_index, k_index = grown
            c_BSE = c_BS1E[:, :, 0]
        args = self._arguments(context, x_BTD, c_BSE, q_index, k_index)
        matrices = None
        if cache is not None and not context.first:
            matrices = self._matrices(c_BSE.dtype)
        if matrices is None:
            k_BSNH = key(c_BSE)
            turning_BSNH = jnp.broadcast_to(
                turning_BS1H, (*k_BSNH.shape[:3], turning_BS1H.shape[-1])
            )
            out_BTNH = self._attend_heads(
                jnp.concatenate([content_BTNH, turning_BTNH], axis=-1),
                jnp.concatenate([k_BSNH, turning_BSNH], axis=-1),
                value(c_BSE),
                args,
            )
        else:
            q = content_BTNH, turning_BTNH
            out_BTNH = self._attend_latents(q, c_BSE, turning_BS1H, matrices, args)
        out_BTNH = materialize(out_BTNH, args.sharding)
        out = Einsum(
            "BTNH,NHD->BTD",
            self._sizes(H=self.latent.value_dim, D=x_BTD.shape[-1]),
            "out" in self.cfg.bias,
            self.cfg.initial,
            self.execution,
            True,
            name="out",
        )
        y_BTD = named(OUT, out(out_BTNH))
        if cache is None:
            return y_BTD
        return y_BTD, kept

    def _queries(self, x_BTD: jax.Array, phase: Phase | None) -> tuple[jax.Array, jax.Array]:
        """Returns the two parts of all heads, the second one turned."""
        latent = self.latent
        has_bias = "query" in self.cfg.bias
        if latent.q_rank:
            x_BTD = self._down("query_latent", x_BTD, latent.q_rank, bias=has_bias)
            x_BTD = self._latent_norm("query_norm", x_BTD)
            has_bias = False
        sizes = self._sizes(D=x_BTD.shape[-1], H=latent.content_dim + latent.rotary_dim)
        query = Einsum(
            "BTD,DNH->BTNH", sizes, has_bias, self.cfg.initial, self.execution, name="query"
        )
        content_BTNH, turning_BTNH = jnp.split(query(x_BTD), [latent.content_dim], axis=-1)
        return content_BTNH, _turned(turning_BTNH, phase)

    def _down(self, name: str, x_BTD: jax.Array, width: int, bias: bool | None = None) -> jax.Array:
        """Projects to a vector for all heads; by default it has a bias if keys have one."""
        has_bias = "key" in self.cfg.bias if bias is None else bias
        sizes = {"D": x_BTD.shape[-1], "E": width}
        return Einsum("BTD,DE->BTE", sizes, has_bias, self.cfg.initial, self.execution, name=name)(
            x_BTD
        )

    def _latent_norm(self, name: str, x_BTE: jax.Array) -> jax.Array:
        norm = NormConfig(kind="rms", eps=self.latent.norm_eps)
        return Norm(norm, self.execution, name=name)(x_BTE)

    def _up(self, name: str, width: int) -> Einsum:
        """Builds the projection of latent vectors to the heads' keys or values."""
        sizes = self._sizes(E=self.latent.kv_rank, H=width)
        return Einsum("BSE,ENH->BSNH", sizes, False, self.cfg.initial, self.execution, name=name)

    def _matrices(self, dtype: DTypeLike) -> tuple[jax.Array, jax.Array] | None:
        """Returns the matrices of keys and values; None if they are adapted or quantized.

        Keys and values are then made of what the cache holds.
        """
        adapter = adapter_of(self.execution)
        kernels = []
        for name in ("key", "value"):
            adapted = adapter is not None and adapter.adapts("/".join((*self.path, name, "kernel")))
            if adapted or self.is_initializing():
                return None
            kernel = self.variables["params"][name]["kernel"]
            if not isinstance(kernel, jax.Array | np.ndarray):
                return None
            kernels.append(jnp.asarray(kernel, dtype))
        return kernels[0], kernels[1]

    def _sizes(self, **others: int) -> dict[str, int]:
        return {"N": self.cfg.num_heads, **others}

    @property
    def _scale(self) -> float:
        return self.latent.head_dim**-0.5 if self.cfg.scale is None else self.cfg.scale

    def _arguments(
        self,
        context: Context,
        x_BTD: jax.Array,
        c_BSE: jax.Array,
        q_index: jax.Array | None,
        k_index: jax.Array | None,
    ) -> Arguments:
        run = self.execution
        batch, rows, _ = x_BTD.shape
        check_mask(context.mask, batch, rows, c_BSE.shape[1], q_index, k_index)
        q_index_T = or_arange(q_index, x_BTD)
        k_index_S = or_arange(k_index, c_BSE)
        dropout_rate, dropout_key = dropout_of_weights(self, run)
        return Arguments(
            mask=self._mask(context, q_index_T, k_index_S),
            scale=self._scale,
            q_index=q_index,
            k_index=k_index,
            sharding=sharding_of(run),
            dropout_rate=dropout_rate,
            dropout_key=dropout_key,
        )

    def _attend_heads(
        self, q_BTNH: jax.Array, k_BSNH: jax.Array, v_BSNH: jax.Array, args: Arguments
    ) -> jax.Array:
        """Attends to the keys and values of each head."""
        constrain = args.sharding.constrain
        q_BTNH = constrain(q_BTNH, "BTNH")
        k_BSNH = constrain(k_BSNH, "BTNH")
        v_BSNH = constrain(v_BSNH, "BTNH")
        q_BTNH, k_BSNH, v_BSNH = named(QKV, q_BTNH, k_BSNH, v_BSNH)
        return constrain(self.attend(q_BTNH, k_BSNH, v_BSNH, args), "BTNH")

    def _attend_latents(
        self,
        q: tuple[jax.Array, jax.Array],
        c_BSE: jax.Array,
        turning_BS1H: jax.Array,
        matrices: tuple[jax.Array, jax.Array],
        args: Arguments,
    ) -> jax.Array:
        """Attends to the latent vectors, which all heads share, as keys and as values."""
        content_BTNH, turning_BTNH = q
        key_ENH, value_ENH = matrices
        q_BTNE = jnp.einsum("BTNH,ENH->BTNE", content_BTNH, key_ENH)
        turning_BSH = turning_BS1H[:, :, 0]
        by_position_BNTS = self._scale * jnp.einsum(
            "BTNH,BSH->BNTS", turning_BTNH, turning_BSH, preferred_element_type=jnp.float32
        )
        args = dataclasses.replace(args, bias=by_position_BNTS)
        c_BS1E = c_BSE[:, :, None]
        out_BTNE = self.attend(q_BTNE, c_BS1E, c_BS1E, args)
        return jnp.einsum("BTNE,ENH->BTNH", out_BTNE, value_ENH)


def _turned(x_BTNH: jax.Array, phase: Phase | None) -> jax.Array:
    if phase is None:
        return x_BTNH
    return rotate(x_BTNH, phase)
