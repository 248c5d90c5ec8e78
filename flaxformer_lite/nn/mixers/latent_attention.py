"""Attention with keys and values projected from a latent vector per token (DeepSeek's MLA)."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, NormConfig, parts, rules
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions.rotary import Phase, rotate
from flaxformer_lite.nn.functions.sharding import adapter_of
from flaxformer_lite.nn.mixers.attention import (
    OUT_BIAS,
    OUT_WEIGHT,
    Attention,
    AttentionConfig,
    AttentionVariantConfig,
)
from flaxformer_lite.nn.modules import cache as caches
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.nn.positions.encoding import list_hooks


@dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig(AttentionVariantConfig):
    """The record of a LatentAttention; its defaults are DeepSeek-V3's.

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
            "position": "bias" in list_hooks(record.position),
        }
        for name, is_set in unread.items():
            if is_set:
                raise ConfigError(
                    f"{name}, in a layer with mixer.name='latent_attention': all heads share a"
                    " latent vector, and only rotary positions turn a part of them; leave it out,"
                    " or use attention."
                )

    @property
    def plain(self) -> AttentionConfig:
        """The record of its heads, as wide as the part that turns."""
        return dataclasses.replace(self.attention, head_dim=self.rotary_dim)

    @property
    def head_dim(self) -> int:
        """Width of a head's queries and keys."""
        return self.content_dim + self.rotary_dim

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        return LatentAttention(self.plain, execution, causal, latent=self, name=name)

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
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, LayerCache | None]:
        x_BTD = self._check_cache(x_BTD, context, cache)
        phase = self._phase(context, cache, x_BTD)
        content_BTNH, turning_BTNH = self._queries(x_BTD, phase)
        turning_BS1H = self._down("rotary_key", x_BTD, self.latent.rotary_dim)[:, :, None]
        turning_BS1H = _turned(turning_BS1H, phase)
        c_BSE = self._down("latent", x_BTD, self.latent.kv_rank)
        c_BSE = self._latent_norm("latent_norm", c_BSE)
        key = self._up("key", self.latent.content_dim)
        value = self._up("value", self.latent.value_dim)
        seen = self.extend(cache, turning_BS1H, c_BSE[:, :, None], context)
        turning_BS1H = seen.k_BSKH
        c_BSE = seen.v_BSKH[:, :, 0]
        args = self.self_arguments(context, x_BTD, seen, scale=self.scale_of(content_BTNH))
        matrices = None
        if cache is not None and not context.first:
            matrices = self._matrices(c_BSE.dtype)
        if matrices is None:
            k_BSNH = key(c_BSE)
            turning_BSNH = jnp.broadcast_to(
                turning_BS1H, (*k_BSNH.shape[:3], turning_BS1H.shape[-1])
            )
            heads = self.place_heads(
                jnp.concatenate([content_BTNH, turning_BTNH], axis=-1),
                jnp.concatenate([k_BSNH, turning_BSNH], axis=-1),
                value(c_BSE),
            )
            out_BTNH = self.attend(*heads, args)
        else:
            q = content_BTNH, turning_BTNH
            out_BTNH = self._attend_latents(q, c_BSE, turning_BS1H, matrices, args)
        return self.project_out(out_BTNH, x_BTD), seen.cache

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
            "BTD,DNH->BTNH",
            sizes,
            bias=has_bias,
            initial=self.cfg.initial,
            execution=self.execution,
            name="query",
        )
        content_BTNH, turning_BTNH = jnp.split(query(x_BTD), [latent.content_dim], axis=-1)
        return content_BTNH, _turned(turning_BTNH, phase)

    def _down(self, name: str, x_BTD: jax.Array, width: int, bias: bool | None = None) -> jax.Array:
        """Projects to a vector for all heads; by default it has a bias if keys have one."""
        has_bias = "key" in self.cfg.bias if bias is None else bias
        sizes = {"D": x_BTD.shape[-1], "E": width}
        return Einsum(
            "BTD,DE->BTE",
            sizes,
            bias=has_bias,
            initial=self.cfg.initial,
            execution=self.execution,
            name=name,
        )(x_BTD)

    def _latent_norm(self, name: str, x_BTE: jax.Array) -> jax.Array:
        norm = NormConfig(kind="rms", eps=self.latent.norm_eps)
        return Norm(norm, self.execution, name=name)(x_BTE)

    def _up(self, name: str, width: int) -> Einsum:
        """Builds the projection of latent vectors to the heads' keys or values."""
        sizes = self._sizes(E=self.latent.kv_rank, H=width)
        return Einsum(
            "BSE,ENH->BSNH", sizes, initial=self.cfg.initial, execution=self.execution, name=name
        )

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

    @nn.nowrap
    def scale_of(self, q_BTNH: jax.Array) -> float:
        if self.cfg.scale is None:
            return self.latent.head_dim**-0.5
        return self.cfg.scale

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
        by_position_BNTS = self.scale_of(content_BTNH) * jnp.einsum(
            "BTNH,BSH->BNTS", turning_BTNH, turning_BSH, preferred_element_type=jnp.float32
        )
        # The place of the bias is free, as the record refuses encodings that have one.
        args = dataclasses.replace(args, bias=by_position_BNTS)
        c_BS1E = c_BSE[:, :, None]
        out_BTNE = self.attend(q_BTNE, c_BS1E, c_BS1E, args)
        return jnp.einsum("BTNE,ENH->BTNH", out_BTNE, value_ENH)


def _turned(x_BTNH: jax.Array, phase: Phase | None) -> jax.Array:
    if phase is None:
        return x_BTNH
    return rotate(x_BTNH, phase)
