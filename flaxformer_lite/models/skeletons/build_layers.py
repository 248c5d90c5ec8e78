"""Converts a model's config to the records of its parts."""

import functools
from typing import Any

import numpy as np
from jax import export

from flaxformer_lite.config import (
    ConfigError,
    Execution,
    LayerConfig,
    LayerKind,
    ModelConfig,
    NormConfig,
    StackConfig,
    choices,
    plugin_name,
)
from flaxformer_lite.config.parts import FeedForwardConfig, MixerConfig
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.mixers.attention import AttentionConfig
from flaxformer_lite.nn.modules.cache import MixerCache, init_stack_cache
from flaxformer_lite.nn.modules.embed import EmbedConfig
from flaxformer_lite.nn.modules.heads import LABELS, Classifier, VocabConfig
from flaxformer_lite.nn.positions.encoding import list_hooks


def attention(cfg: ModelConfig, kind: LayerKind, *, cross: bool = False) -> AttentionConfig:
    """Builds the record of the attention in layers of one kind."""
    name = _of(kind, cfg, "qk_norm")
    qk_norm = None
    if name != "none" and not cross:
        qk_norm = NormConfig(kind=name, eps=cfg.norm_eps)
    scale = _of(kind, cfg, "attention_scale")
    if cfg.base_head_dim:
        scale = cfg.scale
    window = kind.window or 0
    if cross:
        window = 0
    return AttentionConfig(
        num_heads=_of(kind, cfg, "num_heads"),
        num_kv_heads=_of(kind, cfg, "num_kv_heads"),
        head_dim=_of(kind, cfg, "head_dim"),
        bias=tuple(slot for slot in choices.ATTENTION_BIAS_SLOTS if slot in cfg.bias_at),
        scale=scale,
        softcap=cfg.attention_softcap,
        window=window,
        qk_norm=qk_norm,
        qk_norm_over=cfg.qk_norm_over,
        clip=cfg.qkv_clip,
        gate=cfg.attention_gate and not cross,
        sinks=cfg.attention_sinks and not cross,
        position=_of(kind, cfg, "position"),
        max_length=cfg.max_length,
        initial=cfg.initial,
        cross=cross,
    )


def _of(kind: LayerKind, cfg: ModelConfig, name: str) -> Any:
    """Returns a field of the kind of layer, or the model's if the kind does not set it."""
    value = getattr(kind, name)
    if value is None:
        return getattr(cfg, name)
    return value


def feed_forward(cfg: ModelConfig) -> MlpConfig:
    """Builds the record of the plain or gated feed-forward."""
    return MlpConfig(
        mlp_dim=cfg.mlp_dim,
        activation=cfg.activation,
        gated=cfg.mlp == "gated",
        bias="mlp" in cfg.bias_at,
        down_bias="mlp_down" in cfg.bias_at,
        initial=cfg.initial,
    )


def layer(cfg: ModelConfig, kind: LayerKind, *, cross: bool = False) -> LayerConfig:
    """Builds the record of the layers of one kind."""
    chosen_mixer = kind.mixer or cfg.mixer
    mixer: MixerConfig = attention(cfg, kind)
    if chosen_mixer:
        mixer = chosen_mixer.for_model(attention(cfg, kind))
    cross_attention = None
    if cross and not (chosen_mixer and chosen_mixer.reads_source):
        cross_attention = attention(cfg, kind, cross=True)
    chosen_feed_forward = kind.feed_forward or cfg.feed_forward
    made_feed_forward: FeedForwardConfig | None = None
    if chosen_feed_forward:
        made_feed_forward = chosen_feed_forward.for_model(feed_forward(cfg))
    elif cfg.mlp != "none":
        made_feed_forward = feed_forward(cfg)
    extra_branch = None
    if kind.extra_branch:
        extra_branch = kind.extra_branch.for_model(attention(cfg, kind))
    after = None
    if kind.after:
        after = kind.after.for_model(feed_forward(cfg))
    norm_at = kind.norm_at
    if norm_at is None:
        norm_at = tuple(slot for slot in cfg.norm_at if slot in choices.LAYER_NORM_SLOTS)
    return LayerConfig(
        mixer=mixer,
        cross=cross_attention,
        feed_forward=made_feed_forward,
        extra_branch=extra_branch,
        after=after,
        output_scale=kind.output_scale,
        norm=cfg.norm_config,
        norm_at=norm_at,
        residual=cfg.residual,
        residual_multiplier=cfg.residual_multiplier,
    )


@functools.lru_cache(maxsize=64)  # modules are set up anew at each call
def stack(cfg: ModelConfig, side: str) -> StackConfig:
    """Builds the record of the `encoder` or the `decoder`."""
    cross = False
    sizes = cfg
    if side == "decoder":
        cross = bool(cfg.encoder_layers)
        sizes = cfg.of_decoder
    pattern = tuple(layer(sizes, kind, cross=cross) for kind in sizes.kinds)
    unread = set(list_hooks(cfg.position)) - {"embed"}
    if unread and all(kind.mixer is not None and kind.mixer.knows_order for kind in pattern):
        raise ConfigError(
            f"position.name={plugin_name(cfg.position)!r}: is for attention, and no layer of the"
            f" {side} has any; recurrent layers know the order of tokens, so set"
            " position.name=nope."
        )
    _check_low_precision(cfg, pattern)
    final_norm = None
    if "final" in cfg.norm_at:
        final_norm = cfg.norm_config
    return StackConfig(
        num_layers=getattr(cfg, f"{side}_layers"),
        pattern=pattern,
        final_norm=final_norm,
        share=cfg.share_layers,
    )


def _check_low_precision(cfg: ModelConfig, pattern: tuple[LayerConfig, ...]) -> None:
    """Refuses parts that cannot hold their matrices or caches in few bits."""
    fields = {"matmul": "float", "quantize": "none", "cache": "float"}
    for name, off in fields.items():
        value = getattr(cfg, name)
        if value == off:
            continue
        for layer in pattern:
            for part in layer.parts.values():
                concerned = name != "cache" or isinstance(part, MixerConfig)
                if concerned and name not in part.low_precision:
                    raise ConfigError(
                        f"{name}={value!r}: {type(part).__name__} computes in floats only; set"
                        f" {name}={off}."
                    )


@functools.lru_cache(maxsize=64)  # modules are set up anew at each call
def embed(
    cfg: ModelConfig,
    width: int = 0,
    frozen: tuple[str, ...] = (),
    padded_heads: tuple[str, ...] = (),
    always_projects: bool = False,
    norm_first: bool = False,
) -> EmbedConfig:
    """Builds the record of the embeddings.

    Args:
      cfg: the model's config.
      width: the width of the tables; 0 takes it from the config.
      frozen: the tables, "tokens" or "positions", whose row for the padding token transformers does
        not train. It matters only for losses that read vectors of padding, as question
        answering and `padded_heads` do.
      padded_heads: more heads whose losses read vectors of padding.
      always_projects: whether to project the embeddings even to their own width.
      norm_first: whether the norm comes before the projection.
    """
    padding = None
    if cfg.head in ("question_answering", *padded_heads):
        padding = cfg.pad_token_id
    stddev = {"fan_in": 1.0, "xavier": cfg.d_model**-0.5}.get(cfg.init)  # embeddings have no fans
    norm = None
    if "embed" in cfg.norm_at:
        norm = cfg.norm_config
    return EmbedConfig(
        vocab_size=cfg.vocab_size,
        width=width or cfg.embedding_width,
        d_model=cfg.d_model,
        type_vocab_size=cfg.type_vocab_size,
        task_vocab_size=cfg.task_type_vocab_size,
        position=cfg.position,
        max_length=cfg.max_length,
        scale=cfg.embed_scale,
        norm=norm,
        norm_first=norm_first,
        always_projects=always_projects,
        project_bias="embed" in cfg.bias_at,
        stddev=stddev,
        initial=cfg.initial,
        frozen_token=padding if "tokens" in frozen else None,
        frozen_position=padding if "positions" in frozen else None,
    )


@functools.lru_cache(maxsize=64)  # modules are set up anew at each call
def vocab(cfg: ModelConfig) -> VocabConfig:
    """Builds the record of the logits over the vocabulary."""
    return VocabConfig(
        vocab_size=cfg.vocab_size,
        tied=cfg.tie_embeddings,
        scale=cfg.logit_scale,
        softcap=cfg.logit_softcap,
        bias="logits" in cfg.bias_at,
        initial=cfg.initial_head,
    )


def classifier(cfg: ModelConfig, run: Execution, *, bias: bool = True) -> Classifier:
    """Builds the last layer of a head that classifies, with as many outputs as the head has."""
    return Classifier(LABELS.get(cfg.head, cfg.num_labels), bias, cfg.initial, run)


def init_cache(cfg: ModelConfig, batch: int, length: int) -> list[MixerCache | None]:
    """Builds empty caches for `length` positions, one per layer.

    If the stack scans, there is one per kind of layer, with a leading Y axis.

    Args:
      cfg: the model's config.
      batch: B; caches for a single example have no batch axis, see nn/modules/cache.py.
      length: S, prompt and continuation together.

    Raises:
      ConfigError: a size is not a positive integer, or the model has no decoder.
    """
    if not isinstance(cfg, ModelConfig):
        raise ConfigError(
            f"init_cache of {type(cfg).__name__}: needs a model's config, so pass model.cfg; for a"
            " Stack of your own use init_stack_cache."
        )
    if not cfg.decoder_layers:
        raise ConfigError(f"init_cache of {cfg.family}: has no decoder, and needs no cache.")
    for name, size in (("batch", batch), ("length", length)):
        is_whole = isinstance(size, int | np.integer) or export.is_symbolic_dim(size)
        if not is_whole or size < 1:
            raise ConfigError(f"init_cache: {name}={size!r}: must be a positive integer.")
    width = cfg.of_decoder.d_model
    return init_stack_cache(stack(cfg, "decoder"), batch, length, width, cfg.execution)
