"""A decoder as Tunix takes it, for its PeftTrainer, sampler and GRPO.

    from flaxformer_lite import load_pretrained
    from flaxformer_lite.inference.tunix_model import TunixModel
    from tunix.generate.sampler import CacheConfig, Sampler

    module = TunixModel(*load_pretrained("path/to/qwen3"))
    sampler = Sampler(module, tokenizer, module.cache_config(256, CacheConfig))

Tunix is not a dependency of this file.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.engine import is_encoder_decoder
from flaxformer_lite.inference.task import check_writes
from flaxformer_lite.models.skeletons.build_layers import init_cache
from flaxformer_lite.nn.modules.cache import Cache as Layers, LayerCache
from flaxformer_lite.types import Params

END = "end_index"  # the tokens that a layer's cache holds, int32 [B], equal in all rows
HELD = "arrays"
Cache = dict[str, dict[str, Any]]
CacheConfig = TypeVar("CacheConfig")  # Tunix's


class Sizes(NamedTuple):
    """The sizes that Tunix asks a model for."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class TunixModel(nnx.Module):
    """A decoder with its parameters, called as the models of Tunix are.

    Parameters are nnx.Param; an adapter's are nnx.LoRAParam, so that PeftTrainer trains those
    alone. Dropout is off.

    Attributes:
      model: the linen module.
      params: its parameters, nested dicts of nnx.Param.
      config: its sizes.
    """

    def __init__(self, model: nn.Module, params: Params):
        """Wraps a model; the arrays of params are not copied.

        Raises:
          ConfigError: the model does not write, has an encoder, or scans its layers.
        """
        cfg = model.cfg
        check_writes(cfg)
        if is_encoder_decoder(cfg):
            raise ConfigError(f"TunixModel of {cfg.family}: Tunix takes decoders without encoder.")
        if cfg.scan:
            raise ConfigError(
                "scan=True: Tunix needs a cache for each layer; load the model with scan=False."
            )
        self.model = nnx.static(model)
        factors = () if cfg.adapter is None else cfg.adapter.factors

        def variable(path: tuple, value: jax.Array) -> nnx.Param:
            if path[-1].key in factors:
                return nnx.LoRAParam(value)
            return nnx.Param(value)

        self.params = nnx.data(jax.tree_util.tree_map_with_path(variable, params))
        self.config = nnx.static(
            Sizes(cfg.decoder_layers, cfg.num_kv_heads or cfg.num_heads, cfg.head_dim)
        )

    def __call__(
        self,
        input_tokens: jax.Array,
        positions: jax.Array,
        cache: Cache | None = None,
        attention_mask: jax.Array | None = None,
        *,
        segment_ids: jax.Array | None = None,
        decode_only_last_token: bool = False,
    ) -> tuple[jax.Array, Cache | None]:
        """Returns the logits, and the updated cache if one was passed.

        Args:
          input_tokens: [B, T].
          positions: [B, T], counted over tokens that are kept.
          cache: from `init_cache`; the tokens continue where it ends.
          attention_mask: bool [B, T, S], over the slots of the cache, or over the T tokens: what
            Tunix makes of kept tokens, each visible to itself and those after it. Layers with a
            window narrow it themselves. Logits of any other mask are NaN.
          segment_ids: int [B, T], packed documents in place of attention_mask; 0 is padding.
          decode_only_last_token: whether the logits are those of the last token alone.

        Returns:
          float32 logits [B, T or 1, V], and the cache.
        """
        model, params = self.linen()
        keep_BS = None
        fits = jnp.ones((), bool)
        if attention_mask is not None and segment_ids is None:
            keep_BS = attention_mask.any(axis=1)
            first = 0 if cache is None else next(iter(cache.values()))[END][0]
            rows_T1 = first + jnp.arange(input_tokens.shape[1])[:, None]
            seen_TS = jnp.arange(attention_mask.shape[-1])[None] <= rows_T1
            fits = (attention_mask == (seen_TS[None] & keep_BS[:, None])).all()
        decoded: Any = model.apply(
            {"params": params},
            input_tokens,
            attention_mask=keep_BS,
            position_ids=positions,
            segment_ids=segment_ids,
            cache=None if cache is None else _to_layers(cache),
            method="decode",
        )
        x_BTD, layers = decoded
        if decode_only_last_token:
            x_BTD = x_BTD[:, -1:]
        projection: Any = model.apply({"params": params}, x_BTD, method="project")
        logits = projection.logits()
        logits = jnp.where(fits, logits, jnp.nan)
        if cache is None:
            return logits, None
        return logits, _from_layers(layers, input_tokens.shape[0])

    def init_cache(self, batch_size: int, cache_size: int, dtype: DTypeLike) -> Cache:
        """Builds the empty caches of all layers, in the dtype of the model.

        Returns:
          `layer_0`, `layer_1` and so on, each with `end_index`, int32 [B], and the arrays of our
          own cache, whose first axis is B.
        """
        del dtype  # Tunix passes that of the parameters
        empty = _from_layers(init_cache(self.model.cfg, batch_size, cache_size), batch_size)
        return jax.tree.map(jnp.copy, empty)  # Tunix donates them, so none may be another's buffer

    def cache_config(self, cache_size: int, kind: Callable[..., CacheConfig]) -> CacheConfig:
        """Returns Tunix's CacheConfig, which is passed as `kind`, for prompt and text together."""
        return kind(cache_size=cache_size, **self.config._asdict())

    def linen(self) -> tuple[nn.Module, Params]:
        """Returns the linen module and its parameters, for `save_pretrained` and all else here."""
        return self.model, nnx.to_pure_dict(nnx.state(self.params, nnx.Param))

    @property
    def num_embed(self) -> int:
        """The size of the vocabulary, as Tunix's sampler asks for it."""
        return self.model.cfg.vocab_size


def _from_layers(layers: Layers, batch: int) -> Cache:
    """Turns our caches into a dict for each layer, whose arrays all have the axis B."""
    cache: Cache = {}
    for number, layer in enumerate(layers):
        entry: dict[str, Any] = {END: jnp.zeros((batch,), jnp.int32)}
        if layer is not None:
            entry[END] += jnp.asarray(layer.length, jnp.int32)
            held = layer.replace(length=None)
            entry[HELD] = jax.tree.map(lambda x: x[None], held) if _is_single(held, 3) else held
        cache[f"layer_{number}"] = entry
    return cache


def _to_layers(cache: Cache) -> Layers:
    """Turns Tunix's caches back into ours, in which a single row has no axis B."""
    layers = []
    for number in range(len(cache)):
        entry = cache[f"layer_{number}"]
        held = entry.get(HELD)
        if held is not None:
            if len(entry[END]) == 1 and _is_single(held, 4):
                held = jax.tree.map(lambda x: x[0], held)
            held = held.replace(length=entry[END][0])
        layers.append(held)
    return layers


def _is_single(layer: object, axes: int) -> bool:
    return isinstance(layer, LayerCache) and layer.k_BKSH.ndim == axes
