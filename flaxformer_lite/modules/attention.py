"""Multi-head, multi-query and grouped-query attention; self- and cross-; with and without a cache."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite import registry
from flaxformer_lite.attentions.arguments import Arguments
from flaxformer_lite.attentions.dispatch import select_implementation
from flaxformer_lite.config import ModelConfig
from flaxformer_lite.functions import masks
from flaxformer_lite.functions.rotary import rotate
from flaxformer_lite.modules import cache as caches
from flaxformer_lite.modules.cache import LayerCache
from flaxformer_lite.modules.context import Context
from flaxformer_lite.modules.einsum import Einsum
from flaxformer_lite.modules.norms import Norm
from flaxformer_lite.modules.position_tables import PositionTables, hook
from flaxformer_lite.modules.sharding import sharding_of


class Attention(nn.Module):
    """Projects to heads, attends, projects back.

    Attributes:
      cfg: sizes and names.
      window: of this layer; 0 sees everything.
      cross: read the encoder's output instead of the layer's own input.
      causal: rows see only what came before (tells relative encodings that no distance is positive).

    Reference: Vaswani et al. (2017), section 3.2; Shazeer (2019) for one, Ainslie et al. (2023) for grouped K/V heads.
    """

    cfg: ModelConfig
    window: int = 0
    cross: bool = False
    causal: bool = False

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: Context, cache: LayerCache | None = None):
        cfg, sharding = self.cfg, sharding_of(self.cfg)
        sizes = {"D": cfg.d_model, "N": cfg.num_heads, "K": cfg.kv_heads, "H": cfg.head_width}
        # T5 does not scale its logits; Mesh TensorFlow folds 1 / sqrt(H) into the initial query weights instead.
        gain = cfg.head_width**-0.5 if cfg.scale == 1.0 else 1.0
        q_BTNH = Einsum(cfg, "BTD,DNH->BTNH", sizes, "query" in cfg.bias_at, gain=gain, name="query")(x_BTD)
        if self.cross:
            k_BSKH, v_BSKH, cache = self._cross_keys(context, cache, sizes)
            mask, bias, q_index, k_index = context.cross_mask, None, None, None
        else:
            k_BSKH, v_BSKH = self._keys(x_BTD, sizes)
            if cfg.qk_norm != "none":
                q_BTNH = Norm(cfg, cfg.qk_norm, name="query_norm")(q_BTNH)
                k_BSKH = Norm(cfg, cfg.qk_norm, name="key_norm")(k_BSKH)
            if context.phase is not None:
                q_BTNH, k_BSKH = rotate(q_BTNH, context.phase), rotate(k_BSKH, context.phase)
                v_BSKH = rotate(v_BSKH, context.phase) if context.phase.values else v_BSKH
            k_BSKH, v_BSKH, cache, q_index, k_index = self._remember(k_BSKH, v_BSKH, context, cache)
            mask, bias = self._mask(context), self._bias(context, q_BTNH, k_BSKH, q_index, k_index)
        dropout = {}
        if "attention" in cfg.dropout_at and cfg.dropout and self.has_rng("dropout"):
            dropout = {"dropout_rate": cfg.dropout, "dropout_key": self.make_rng("dropout")}
        args = Arguments(
            mask=mask, bias=bias, scale=cfg.scale, softcap=cfg.attention_softcap, q_index=q_index, k_index=k_index,
            sharding=sharding, **dropout,
        )  # fmt: skip
        attend = select_implementation(cfg.attention, q_BTNH.shape[1], k_BSKH.shape[1], sharding)
        q_BTNH = sharding.constrain(q_BTNH, "BTNH")
        out_BTNH = attend(q_BTNH, sharding.constrain(k_BSKH, "BSKH"), sharding.constrain(v_BSKH, "BSKH"), args)
        out_BTNH = sharding.constrain(out_BTNH, "BTNH")
        return Einsum(cfg, "BTNH,NHD->BTD", sizes, "out" in cfg.bias_at, residual=True, name="out")(out_BTNH), cache

    def _keys(self, x_BSD: jax.Array, sizes: dict[str, int]):
        k_BSKH = Einsum(self.cfg, "BSD,DKH->BSKH", sizes, "key" in self.cfg.bias_at, name="key")(x_BSD)
        return k_BSKH, Einsum(self.cfg, "BSD,DKH->BSKH", sizes, "value" in self.cfg.bias_at, name="value")(x_BSD)

    def _cross_keys(self, context: Context, cache: LayerCache | None, sizes: dict[str, int]):
        if context.encoder_output_BSD is None:
            return *map(caches.heads_first, (cache.cross_k_BKSH, cache.cross_v_BKSH)), cache
        k_BSKH, v_BSKH = self._keys(context.encoder_output_BSD, sizes)
        k_BKSH, v_BKSH = map(caches.heads_first, (k_BSKH, v_BSKH))
        return k_BSKH, v_BSKH, cache and cache.replace(cross_k_BKSH=k_BKSH, cross_v_BKSH=v_BKSH)

    def _remember(self, k_BSKH: jax.Array, v_BSKH: jax.Array, context: Context, cache: LayerCache | None):
        """Writes to the cache. One token then reads all slots; a prompt, which starts the cache, reads only itself."""
        if cache is None:
            return k_BSKH, v_BSKH, None, None, None
        k_BKSH = caches.append(cache.k_BKSH, k_BSKH, context.index)
        v_BKSH = caches.append(cache.v_BKSH, v_BSKH, context.index)
        cache = cache.replace(k_BKSH=k_BKSH, v_BKSH=v_BKSH)
        if k_BSKH.shape[1] > 1:
            return k_BSKH, v_BSKH, cache, None, None
        k_index = caches.slots(k_BKSH.shape[-2], context.index)
        return caches.read(k_BKSH), caches.read(v_BKSH), cache, context.index[None], k_index

    def _mask(self, context: Context):
        if not self.window:
            return context.mask
        reach = masks.window(self.window - 1, 0 if self.causal else self.window - 1)
        return reach if context.mask is None else context.mask & reach

    def _bias(self, context: Context, q_BTNH, k_BSKH, q_index_T, k_index_S):
        if hook(self.cfg.position) != "bias" or context.bias is not None:
            return context.bias
        per_layer = self.cfg.position.per_layer
        tables = PositionTables(self.cfg, name="position")() if per_layer else context.tables
        q_index_T = arange(q_BTNH) if q_index_T is None else q_index_T
        k_index_S = arange(k_BSKH) if k_index_S is None else k_index_S
        return relative_bias(self.cfg, tables, q_index_T, k_index_S, not self.causal)


def relative_bias(cfg: ModelConfig, tables, q_index_T: jax.Array, k_index_S: jax.Array, bidirectional: bool):
    """The encoding's bias over slots. Distances between slots are those between positions, for documents packed into one
    row and for prompts padded on the left alike, and need no batch axis."""
    return cfg.position.attention_bias(tables, q_index_T[None], k_index_S[None], bidirectional=bidirectional)


def arange(x_BT: jax.Array) -> jax.Array:
    return jnp.arange(x_BT.shape[1], dtype=jnp.int32)


def lower(cfg: ModelConfig, context: Context, x_BTD: jax.Array, bidirectional: bool) -> Context:
    """Builds the dense mask and bias once for all layers, where the dense implementation would do so in each."""
    whole = [registry.resolve("attentions", name).attend for name in ("dense", "chunked_causal")]
    index_T, length = arange(x_BTD), x_BTD.shape[1]
    if context.index is not None:
        return context
    if select_implementation(cfg.attention, length, length, sharding_of(cfg)) not in whole:
        return context
    if context.mask is not None:
        context = context.replace(mask=masks.materialize(context.mask, length))
    if hook(cfg.position) == "bias" and not cfg.position.per_layer:
        bias = relative_bias(cfg, context.tables, index_T, index_T, bidirectional)
        heads = jnp.zeros(
            (1, 1, cfg.num_heads, 1)
        )  # a bias shared by all layers asks of its queries only how many heads
        context = context.replace(bias=bias(heads, index_T, index_T))
    return context
