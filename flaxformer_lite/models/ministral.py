"""Ministral: Mistral with windows in some layers only.

Reference: Mistral AI, "Un Ministral, des Ministraux" (2024).
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import mistral
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, read_windows, write_windows
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.rope import Rope

BASE = mistral.BASE | dict(
    vocab_size=131072,
    position=Rope(base=100000000.0),
    windows=(0, 32768, 32768, 32768),
)
PRESETS = {
    "tiny": llama_like.TINY | dict(windows=(0, 64)),
    "8b": dict(
        d_model=4096, num_heads=32, num_kv_heads=8, head_dim=128, mlp_dim=12288, decoder_layers=36
    ),
}
config = partial(build_config, "ministral", BASE, PRESETS, "8b")
Model = llama_like.Model


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 32)
    window = fields.nullable("sliding_window", 4096)
    windows = read_windows(fields, layers, lambda i: window > 0, window)
    return llama_like.read_heads(fields, kv_heads=8) | {"windows": windows}


def write(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | write_windows(cfg, None)


PUBLISHED = llama_like.published(
    "ministral",
    defaults=dict(
        vocab_size=32000,
        intermediate_size=14336,
        num_hidden_layers=32,
        max_position_embeddings=131072,
    ),
    heads=llama_like.heads("Ministral"),
    read=read,
    write=write,
)
