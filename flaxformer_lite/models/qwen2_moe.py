"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts and one that all tokens use.

Reference: Yang et al., "Qwen2 Technical Report" (2024), section 2.2.2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import experts, llama_like, qwen_like
from flaxformer_lite.models.fields import Fields, ModelFields, read_windows
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig

BASE = qwen_like.BASE
PRESETS = {
    "tiny": llama_like.TINY
    | dict(feed_forward=MoeConfig(mlp_dim=86, shared_dim=172, shared_gate=True, normalize=False)),
    "a2.7b": dict(  # Qwen1.5-MoE-A2.7B
        d_model=2048,
        num_heads=16,
        mlp_dim=5632,
        decoder_layers=24,
        max_length=8192,
        feed_forward=MoeConfig(
            num_experts=60,
            experts_per_token=4,
            mlp_dim=1408,
            shared_dim=5632,
            shared_gate=True,
            normalize=False,
            balance=0.001,
        ),
    ),
}
config = partial(build_config, "qwen2_moe", BASE, PRESETS, "a2.7b")
Model = llama_like.Model
BODY = llama_like.decoder_body(llama_like.LAYER + qwen_like.EXPERTS)


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 24)
    first = fields.get("max_window_layers", 28)
    window = qwen_like.read_window(fields)
    sliding = [window > 0 and i % 2 == 0 and i < first for i in range(layers)]
    windows = read_windows(fields, layers, sliding.__getitem__, window)
    biased = ("query", "key", "value") if fields.get("qkv_bias", True) else ()
    moe = qwen_like.read_experts(
        fields,
        windows,
        num_experts=60,
        experts_per_token=4,
        mlp_dim=fields.size("moe_intermediate_size", 1408),
        shared_dim=fields.size("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return llama_like.read_heads(fields, kv_heads=16) | moe | {"bias_at": biased}


def write(cfg: ModelConfig) -> Json:
    return qwen_like.write_attention(cfg) | {
        **qwen_like.write_experts(cfg),
        "shared_expert_intermediate_size": experts.find_experts(cfg).shared_dim,
        "qkv_bias": "query" in cfg.bias_at,
    }


PUBLISHED = llama_like.published(
    "qwen2_moe",
    BODY,
    defaults=dict(vocab_size=151936, max_position_embeddings=32768),
    heads=llama_like.heads("Qwen2Moe", "model."),
    read=read,
    write=write,
)
