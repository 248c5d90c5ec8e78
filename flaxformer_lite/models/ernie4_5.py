"""ERNIE 4.5: Llama with grouped heads and interleaved rotary pairs; this file has the dense models.

Reference: Baidu-ERNIE-Team, "ERNIE 4.5 Technical Report" (2025), section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.nn.positions.rope import Rope

ALL = ("query", "key", "value", "out", "mlp")
BASE = llama_like.BASE | dict(
    vocab_size=103424,
    max_length=131072,
    position=Rope(base=500000.0, layout="interleaved"),
    tie_embeddings=True,
    head_dim=128,
    pad_token_id=0,
)
PRESETS = {
    "tiny": llama_like.TINY | dict(head_dim=32),
    "0.3b": dict(d_model=1024, num_heads=16, num_kv_heads=2, mlp_dim=3072, decoder_layers=18),
}
config = partial(build_config, "ernie4_5", BASE, PRESETS, "0.3b")
Model = llama_like.LanguageModel


def read(fields: Fields) -> ModelFields:
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 2),
        "head_dim": fields.get("head_dim", 128),
        "position": dataclasses.replace(read_rope(fields), layout="interleaved"),
        "bias_at": ALL if fields.get("use_bias", False) else (),
    }


def write(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | {"use_bias": "mlp" in cfg.bias_at}


PUBLISHED = llama_like.published(
    "ernie4_5",
    defaults=dict(rope_theta=500000.0),
    heads=llama_like.heads("Ernie4_5", only=Model.heads),
    read=read,
    write=write,
)
