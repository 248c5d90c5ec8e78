"""A decoder as Tunix takes it, for its PeftTrainer, sampler and GRPO; copy it into your project.

    module = TunixDecoder(*load_pretrained("path/to/qwen3"))
    sampler = Sampler(module, tokenizer, module.cache_config(256, CacheConfig))

Parameters are nnx.Param, and an adapter's nnx.LoRAParam, so that PeftTrainer trains those alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from flaxformer_lite import init_cache
from flaxformer_lite.nn.modules.cache import LayerCache


class Sizes(NamedTuple):
    """The sizes that Tunix asks a model for."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class TunixDecoder(nnx.Module):
    """A linen decoder (without encoder, scan=False) with its parameters, called as Tunix calls."""

    def __init__(self, model, params):
        if model.cfg.skeleton != "decoder" or model.cfg.scan:
            raise ValueError(f"{model.cfg.family}: Tunix takes decoders alone, with scan=False.")
        cfg = model.cfg
        factors = () if cfg.adapter is None else cfg.adapter.factors

        def variable(path, value):
            if path[-1].key in factors:
                return nnx.LoRAParam(value)
            return nnx.Param(value)

        self.model = nnx.static(model)
        self.params = nnx.data(jax.tree_util.tree_map_with_path(variable, params))
        sizes = Sizes(cfg.decoder_layers, cfg.num_kv_heads or cfg.num_heads, cfg.head_dim)
        self.config = nnx.static(sizes)
        self.num_embed = nnx.static(cfg.vocab_size)

    def __call__(
        self,
        input_tokens,  # [B, T]
        positions,  # [B, T], counted over tokens that are kept
        cache=None,  # from init_cache; the tokens continue where it ends
        attention_mask=None,  # bool [B, T, S]: kept tokens, each seen by itself and those after it
        *,
        segment_ids=None,  # int [B, T], packed documents in place of the mask; 0 is padding
        decode_only_last_token=False,
    ):
        """Returns float32 logits [B, T or 1, V], NaN for any other mask, and the updated cache."""
        model, params = self.linen()
        keep_BS = None
        fits = jnp.ones((), bool)
        if attention_mask is not None and segment_ids is None:
            keep_BS = attention_mask.any(axis=1)
            first = 0 if cache is None else cache["layer_0"]["end_index"][0]
            rows_T1 = first + jnp.arange(input_tokens.shape[1])[:, None]
            seen_TS = jnp.arange(attention_mask.shape[-1])[None] <= rows_T1
            fits = (attention_mask == (seen_TS[None] & keep_BS[:, None])).all()
        x_BTD, layers = model.apply(
            {"params": params},
            input_tokens,
            attention_mask=keep_BS,
            position_ids=positions,
            segment_ids=segment_ids,
            cache=None if cache is None else _to_layers(cache),
            method="decode",
        )
        if decode_only_last_token:
            x_BTD = x_BTD[:, -1:]
        logits = model.apply({"params": params}, x_BTD, method="project").logits()
        logits = jnp.where(fits, logits, jnp.nan)
        return logits, None if cache is None else _from_layers(layers, len(input_tokens))

    def init_cache(self, batch_size, cache_size, dtype):
        """Returns `layer_0`, ... with `end_index`, int32 [B], and our cache with batch first."""
        del dtype  # Tunix passes that of the parameters
        empty = _from_layers(init_cache(self.model.cfg, batch_size, cache_size), batch_size)
        return jax.tree.map(jnp.copy, empty)  # Tunix donates them, so none may be another's buffer

    def cache_config(self, cache_size, kind):
        """Returns Tunix's CacheConfig, which is passed as `kind`, for prompt and text together."""
        return kind(cache_size=cache_size, **self.config._asdict())

    def linen(self):
        """Returns the linen module and its parameters, for `save_pretrained` and all else here."""
        return self.model, nnx.to_pure_dict(nnx.state(self.params, nnx.Param))


def _from_layers(layers, batch):
    cache = {}
    for number, layer in enumerate(layers):
        ends_B = jnp.zeros((batch,), jnp.int32) + jnp.asarray(layer.length, jnp.int32)
        held = layer.replace(length=None)
        if isinstance(held, LayerCache) and batch == 1:  # which it keeps without an axis
            held = jax.tree.map(lambda x: x[None], held)
        cache[f"layer_{number}"] = {"end_index": ends_B, "held": held}
    return cache


def _to_layers(cache):
    layers = []
    for number in range(len(cache)):
        entry = cache[f"layer_{number}"]
        held = entry["held"]
        if isinstance(held, LayerCache) and len(entry["end_index"]) == 1:
            held = jax.tree.map(lambda x: x[0], held)
        layers.append(held.replace(length=entry["end_index"][0]))
    return layers
