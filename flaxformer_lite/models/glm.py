"""GLM: Llama with biases on queries, keys and values, and interleaved pairs on half of each head.

Reference: Team GLM, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools"
(2024), section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.models.weight_map import omit_prefixes, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=151552,
    max_length=131072,
    norm_eps=1.5625e-7,
    position=Rope(fraction=0.5, layout="interleaved"),
    bias_at=("query", "key", "value"),
    head_dim=128,
    pad_token_id=151329,
)
PRESETS = {
    "tiny": llama_like.TINY | dict(head_dim=32, pad_token_id=0),
    "9b": dict(d_model=4096, num_heads=32, num_kv_heads=2, mlp_dim=13696, decoder_layers=40),
}
config = partial(build_config, "glm", BASE, PRESETS, "9b")
Model = llama_like.LabelingModel
FUSED = weight_rows(("mlp.gate_up_proj", ("mlp/gate", "mlp/up"), "2OI"))
LAYER = omit_prefixes(llama_like.LAYER, "mlp.gate_proj", "mlp.up_proj") + FUSED
BODY = llama_like.decoder_body(LAYER)


def read(fields: Fields) -> ModelFields:
    rope = read_rope(fields, fraction="partial_rotary_factor", default_fraction=0.5)
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 2),
        "head_dim": fields.get("head_dim", 128),
        "position": dataclasses.replace(rope, layout="interleaved"),
        "bias_at": ("query", "key", "value") if fields.get("attention_bias", True) else (),
    }


def write(cfg: ModelConfig) -> Json:
    heads = llama_like.write_heads(cfg, fraction="partial_rotary_factor")
    return heads | {"attention_bias": "query" in cfg.bias_at}


PUBLISHED = llama_like.published(
    "glm",
    BODY,
    heads=llama_like.heads("Glm", only=Model.heads),
    read=read,
    write=write,
)
