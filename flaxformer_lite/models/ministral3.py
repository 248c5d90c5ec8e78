"""Ministral 3: Mistral whose queries grow with the logarithm of their position."""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import mistral
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.nn.positions.rope import Rope

ROPE = Rope(
    base=1000000.0,
    scaling="yarn",
    factor=16.0,
    original_max_position_embeddings=16384,
    mscale=1.0,
    mscale_all_dim=1.0,
    query_growth=0.1,
)
BASE = llama_like.BASE | dict(vocab_size=131072, max_length=262144, position=ROPE)
PRESETS = {  # transformers' defaults
    "tiny": llama_like.TINY,
    "8b": dict(
        d_model=4096, num_heads=32, num_kv_heads=8, head_dim=128, mlp_dim=14336, decoder_layers=34
    ),
}
config = partial(build_config, "ministral3", BASE, PRESETS, "8b")
Model = llama_like.Model
GROWTH = "llama_4_scaling_beta"
ORIGINAL = "original_max_position_embeddings"


def read(fields: Fields) -> ModelFields:
    rope = dict(fields.get("rope_parameters", {}))
    if not rope:
        rope = write_positions(ROPE)
    growth = rope.pop(GROWTH, 0.0)
    rope.pop("max_position_embeddings", None)
    fields.values["rope_parameters"] = rope
    position = dataclasses.replace(
        read_rope(fields),
        query_growth=growth,
        original_max_position_embeddings=rope.get(ORIGINAL, 0),
    )
    return llama_like.read_sizes(fields, kv_heads=8, head_dim=128) | {
        "windows": (fields.nullable("sliding_window", 0),),
        "position": position,
    }


def write_positions(rope: Rope) -> Json:
    written = llama_like.write_rope(rope)
    scaling = written.pop("rope_scaling") or {"rope_type": "default"}
    growth = {GROWTH: rope.query_growth, ORIGINAL: rope.original_max_position_embeddings}
    return written | scaling | growth


def write(cfg: ModelConfig) -> Json:
    assert isinstance(cfg.position, Rope)
    return {
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_width,
        "sliding_window": cfg.windows[0] or None,
        "rope_parameters": write_positions(cfg.position),
    }


PUBLISHED = dataclasses.replace(
    mistral.PUBLISHED,
    model_type="ministral3",
    defaults=dict(
        rms_norm_eps=1e-5,
        intermediate_size=14336,
        num_hidden_layers=34,
        max_position_embeddings=262144,
    ),
    heads=llama_like.heads("Ministral3", "model."),
    read=read,
    write=write,
)
