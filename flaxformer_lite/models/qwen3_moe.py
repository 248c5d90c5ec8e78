"""Qwen3-MoE: Qwen3 with many small experts in place of the feed-forward.

Reference: Yang et al., "Qwen3 Technical Report" (2025), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import qwen3
from flaxformer_lite.models.common import llama_like, qwen_like
from flaxformer_lite.models.fields import Fields, ModelFields, largest_window
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig

BASE = qwen3.BASE
PRESETS = {  # table 2
    "tiny": llama_like.TINY | dict(head_dim=48, feed_forward=MoeConfig(mlp_dim=86)),
    "30b_a3b": dict(
        d_model=2048,
        num_heads=32,
        num_kv_heads=4,
        mlp_dim=6144,
        decoder_layers=48,
        feed_forward=MoeConfig(num_experts=128, experts_per_token=8, mlp_dim=768, balance=0.001),
    ),
    "235b_a22b": dict(
        d_model=4096,
        num_heads=64,
        num_kv_heads=4,
        mlp_dim=12288,
        decoder_layers=94,
        feed_forward=MoeConfig(num_experts=128, experts_per_token=8, mlp_dim=1536, balance=0.001),
    ),
}
config = partial(build_config, "qwen3_moe", BASE, PRESETS, "30b_a3b")
Model = llama_like.Model
LAYER = llama_like.LAYER + llama_like.QK_NORMS + qwen_like.ROUTED_EXPERTS
BODY = llama_like.decoder_body(LAYER)


def read(fields: Fields) -> ModelFields:
    biased = llama_like.attention_biases(fields)
    experts = qwen_like.read_experts(
        fields,
        (qwen_like.read_window(fields),),
        num_experts=128,
        experts_per_token=8,
        mlp_dim=fields.size("moe_intermediate_size", 768),
    )
    return llama_like.read_heads(fields, kv_heads=4) | experts | {"bias_at": biased}


def write(cfg: ModelConfig) -> Json:
    window = largest_window(cfg)
    return (
        llama_like.write_heads(cfg)
        | qwen_like.write_experts(cfg)
        | {
            "attention_bias": "query" in cfg.bias_at,
            "use_sliding_window": window > 0,
            "sliding_window": window or None,
        }
    )


PUBLISHED = llama_like.published(
    "qwen3_moe",
    BODY,
    defaults=dict(num_hidden_layers=24, max_position_embeddings=32768),
    heads=llama_like.heads("Qwen3Moe"),
    harmless=("max_window_layers",),
    read=read,
    write=write,
)
