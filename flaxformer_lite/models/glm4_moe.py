"""GLM-4.5: grouped-query attention with biases, and the experts of DeepSeek-V3.

Reference: GLM-4.5 Team, "GLM-4.5" (2025), section 2.1.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import deepseek_v2, deepseek_v3
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(vocab_size=151552, max_length=131072, position=Rope(fraction=0.5))
MOE = MoeConfig(
    num_experts=128,
    experts_per_token=8,
    mlp_dim=1408,
    shared_dim=1408,
    score="sigmoid",
    router_bias_update_rate=0.001,
    balance=0.0,
)
SMALL_MOE = dataclasses.replace(MOE, num_experts=8, experts_per_token=2, mlp_dim=86, shared_dim=86)
PRESETS = {
    "tiny": llama_like.TINY | dict(feed_forward=SMALL_MOE),
    "air": dict(
        d_model=4096,
        num_heads=96,
        num_kv_heads=8,
        head_dim=128,
        mlp_dim=10944,
        decoder_layers=46,
        bias_at=("query", "key", "value"),
        **deepseek_v2.sparse_after(1, 46, MOE),
    ),
}
config = partial(build_config, "glm4_moe", BASE, PRESETS, "air")
Model = llama_like.LanguageModel

LAYER = llama_like.LAYER + llama_like.QK_NORMS + deepseek_v2.EXPERTS
BODY = llama_like.decoder_body(LAYER)


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 46)
    moe = deepseek_v3.with_normalized(fields, MOE)
    return {
        **llama_like.read_sizes(fields, kv_heads=8),
        "position": read_rope(fields, fraction="partial_rotary_factor", default_fraction=0.5),
        "bias_at": ("query", "key", "value") if fields.get("attention_bias", False) else (),
        "qk_norm": "rms" if fields.get("use_qk_norm", False) else "none",
        **deepseek_v2.read_experts(fields, layers, 1, moe),
    }


def write(cfg: ModelConfig) -> Json:
    assert isinstance(cfg.position, Rope)
    return {
        **llama_like.write_heads(cfg, fraction="partial_rotary_factor"),
        **deepseek_v3.write_experts(cfg),
        "attention_bias": "query" in cfg.bias_at,
        "use_qk_norm": cfg.qk_norm == "rms",
    }


PUBLISHED = dataclasses.replace(
    deepseek_v3.PUBLISHED,
    model_type="glm4_moe",
    defaults=dict(
        rms_norm_eps=1e-5,
        hidden_size=4096,
        intermediate_size=10944,
        num_hidden_layers=46,
        num_attention_heads=96,
        max_position_embeddings=131072,
    ),
    names=lambda cfg: BODY,
    heads=llama_like.heads("Glm4Moe", only=Model.heads),
    read=read,
    write=write,
)
