"""Seed-OSS: Llama with wide heads and biases on queries, keys and values.

Reference: ByteDance Seed Team, "Seed-OSS Open-Source Models" (2025).
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=155136,
    max_length=524288,
    norm_eps=1e-6,
    position=Rope(base=10000000.0),
    bias_at=("query", "key", "value"),
    head_dim=128,
    pad_token_id=1,
)
PRESETS = {
    "tiny": llama_like.TINY | dict(head_dim=48),
    "36b": dict(d_model=5120, num_heads=80, num_kv_heads=8, mlp_dim=27648, decoder_layers=64),
}
config = partial(build_config, "seed_oss", BASE, PRESETS, "36b")
Model = llama_like.Model
BIASES = dict(
    attention_bias=("query", "key", "value"), attention_out_bias=("out",), mlp_bias=("mlp",)
)


def read(fields: Fields) -> ModelFields:
    biased: tuple[str, ...] = ()
    for name, slots in BIASES.items():
        if fields.get(name, name == "attention_bias"):
            biased += slots
    return llama_like.read_heads(fields, kv_heads=8, head_dim=128) | {"bias_at": biased}


def write(cfg: ModelConfig) -> Json:
    biases = {name: slots[0] in cfg.bias_at for name, slots in BIASES.items()}
    return llama_like.write_heads(cfg) | biases


PUBLISHED = llama_like.published(
    "seed_oss",
    defaults=dict(hidden_size=4096),
    heads=llama_like.heads("SeedOss"),
    harmless=("residual_dropout",),
    read=read,
    write=write,
)
