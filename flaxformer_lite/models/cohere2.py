"""Cohere 2, Command R7B and Command A: sliding windows with rotary positions in three of four
layers, none of both in the fourth.

Reference: Cohere, "Command A: An Enterprise-Ready Large Language Model" (2025), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import cohere
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    read_windows,
    write_period,
    write_windows,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.rope import Rope

WINDOW_TOKENS = 4096
FULL_LAYER_PERIOD = 4  # the last of so many layers sees everything, without positions


BASE = cohere.BASE | dict(
    position=Rope(base=50000.0, layout="interleaved"),
    pattern=llama_like.alternate_positions(WINDOW_TOKENS, WINDOW_TOKENS, WINDOW_TOKENS, 0),
)
PRESETS = {
    "tiny": cohere.PRESETS["tiny"] | dict(pattern=llama_like.alternate_positions(64, 0)),
    "r7b": dict(
        d_model=4096,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=14336,
        decoder_layers=32,
        logit_multiplier=0.25,
    ),
}
config = partial(build_config, "cohere2", BASE, PRESETS, "r7b")
Model = llama_like.LanguageModel
BODY = llama_like.decoder_body(cohere.LAYER)


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 40)
    every = fields.size("sliding_window_pattern", FULL_LAYER_PERIOD)
    window = fields.nullable("sliding_window", WINDOW_TOKENS)
    windows = read_windows(fields, layers, lambda i: (i + 1) % every != 0, window)
    return cohere.read_attention(fields) | {"pattern": llama_like.alternate_positions(*windows)}


def write(cfg: ModelConfig) -> Json:
    fields = cohere.write_attention(cfg) | write_windows(cfg, WINDOW_TOKENS) | write_period(cfg)
    return fields | {"rotary_pct": 1.0}


PUBLISHED = llama_like.published(
    "cohere2",
    BODY,
    defaults=dict(
        rope_theta=10000.0,
        hidden_size=8192,
        intermediate_size=22528,
        logit_scale=0.0625,
        num_hidden_layers=40,
        num_attention_heads=64,
    ),
    heads=llama_like.heads("Cohere2", only=Model.heads),
    fields=cohere.FIELDS,
    fixed={"use_qk_norm": False},
    harmless=(
        "cache_implementation",
        "order_of_interleaved_layers",
        "position_embedding_type",
        "rotary_pct",
        "use_embedding_sharing",
        "use_gated_activation",
        "use_parallel_block",
        "use_parallel_embedding",
    ),
    read=read,
    write=write,
)
