"""Mistral: Llama with a sliding window in every layer and grouped heads.

Reference: Jiang et al., "Mistral 7B" (2023), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config

BASE = llama_like.BASE | dict(max_length=32768, windows=(4096,))
PRESETS = {  # table 1
    "tiny": llama_like.TINY | dict(windows=(64,)),
    "7b": dict(d_model=4096, num_heads=32, num_kv_heads=8, mlp_dim=14336, decoder_layers=32),
}
config = partial(build_config, "mistral", BASE, PRESETS, "7b")
Model = llama_like.Model


def read(fields: Fields) -> ModelFields:
    return llama_like.read_heads(fields, kv_heads=8) | {
        "windows": (fields.nullable("sliding_window", 4096),)
    }


def write(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | {"sliding_window": cfg.windows[0] or None}


PUBLISHED = llama_like.published(
    "mistral",
    defaults=dict(max_position_embeddings=131072),
    heads=llama_like.heads("Mistral", "model."),
    read=read,
    write=write,
)
