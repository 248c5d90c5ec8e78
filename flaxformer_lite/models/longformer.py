"""Longformer: RoBERTa with windows, and a first token that sees all others where it is classified.

Reference: Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer" (2020).
"""

import dataclasses
from typing import Any

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.models import roberta
from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    omit_fields,
    repeat_pattern,
    shortest_pattern,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.mixers.global_tokens import GlobalTokensConfig

BASE = roberta_like.BASE | dict(max_length=4098, windows=(257,))
PRESETS = bert_like.PRESETS
GLOBAL_HEAD = "sequence_classification"
HEADS = omit_fields(
    roberta_like.HEADS, "causal_lm", "multiple_choice", "question_answering"
)  # where other tokens are global


class Model(roberta_like.Model):
    heads = tuple(HEADS)


def config(preset: str = "base", **overrides: Any) -> ModelConfig:
    """Builds a config with the published sizes; keyword arguments override it.

    Global tokens are those that transformers has for the head if nobody names any.
    """
    mixer = GlobalTokensConfig(first=int(overrides.get("head") == GLOBAL_HEAD))
    return build_config("longformer", BASE, PRESETS, preset, **{"mixer": mixer} | overrides)


GLOBAL = weight_rows(
    ("query_global", "global_query"), ("key_global", "global_key"), ("value_global", "global_value")
)
BODY = bert_like.BODY + add_prefix(
    "encoder.layer.{i}.attention.self", "encoder/layer_{i}/attention", GLOBAL
)


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 12)
    sizes = fields.get("attention_window", 512, kind=object)
    if not isinstance(sizes, list):
        sizes = [sizes] * layers
    if len(sizes) != layers or any(size not in range(2, 1 << 20, 2) for size in sizes):
        raise ConfigError(
            f"config.json: attention_window={quote_value(sizes)}: must be an even number, or one"
            f" for each of the {layers} layers."
        )
    windows = shortest_pattern([size // 2 + 1 for size in sizes])
    return {"windows": windows, "mixer": GlobalTokensConfig(first=int(fields.head == GLOBAL_HEAD))}


def write(cfg: ModelConfig) -> Json:
    windows = repeat_pattern(cfg.windows, cfg.encoder_layers)
    return {"attention_window": [2 * (window - 1) for window in windows]}


PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="longformer",
    prefix="longformer.",
    defaults={**roberta.PUBLISHED.defaults, "vocab_size": 30522},
    names=lambda cfg: BODY,
    heads=build_heads("Longformer", **HEADS),
    harmless=("onnx_export",),
    read=read,
    write=write,
)
