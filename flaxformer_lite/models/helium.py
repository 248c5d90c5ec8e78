"""Helium: Llama with interleaved rotary pairs.

Reference: Kyutai, "Helium 1: a modular and multilingual LLM" (2025).
"""

import dataclasses
from functools import partial

from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=48000,
    max_length=4096,
    norm_eps=1e-8,
    position=Rope(base=100000.0, layout="interleaved"),
    pad_token_id=3,
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=344, decoder_layers=4),
    "2b": dict(d_model=2560, num_heads=20, mlp_dim=7040, decoder_layers=24),
}
config = partial(build_config, "helium", BASE, PRESETS, "2b")
Model = llama_like.LabelingModel


def read(fields: Fields) -> ModelFields:
    biased: tuple[str, ...] = ()
    if fields.get("attention_bias", False):
        biased += ("query", "key", "value")
    if fields.get("mlp_bias", False):
        biased += ("mlp",)
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 20),
        "head_dim": fields.get("head_dim", 128),
        "position": dataclasses.replace(read_rope(fields), layout="interleaved"),
        "bias_at": biased,
    }


PUBLISHED = llama_like.published(
    "helium",
    defaults=dict(rope_theta=100000.0),
    heads=llama_like.heads("Helium", only=Model.heads),
    read=read,
    write=llama_like.write,
)
