"""OLMoE: Llama with many small experts, and a norm over the queries of all heads together.

Reference: Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models" (2024), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import experts, llama_like, qwen_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig

BASE = llama_like.BASE | dict(
    vocab_size=50304, max_length=4096, qk_norm="rms", qk_norm_over="all_heads"
)
PRESETS = {  # table 1
    "tiny": dict(
        d_model=128,
        num_heads=4,
        mlp_dim=86,
        decoder_layers=4,
        feed_forward=MoeConfig(normalize=False),
    ),
    "1b_7b": dict(
        d_model=2048,
        num_heads=16,
        mlp_dim=1024,
        decoder_layers=16,
        feed_forward=MoeConfig(num_experts=64, experts_per_token=8, normalize=False, z_loss=0.001),
    ),
}
config = partial(build_config, "olmoe", BASE, PRESETS, "1b_7b")
Model = llama_like.SequenceModel
BODY = llama_like.decoder_body(llama_like.LAYER + llama_like.QK_NORMS + qwen_like.ROUTED_EXPERTS)


def read(fields: Fields) -> ModelFields:
    biased = llama_like.attention_biases(fields)
    return llama_like.read_heads(fields) | {
        "qkv_clip": fields.get("clip_qkv", 0.0),
        "bias_at": biased,
        "feed_forward": MoeConfig(
            num_experts=fields.size("num_experts", 64),
            experts_per_token=fields.size("num_experts_per_tok", 8),
            normalize=fields.get("norm_topk_prob", False),
            **experts.read_router_losses(fields, balance=0.01),
        ),
    }


def write(cfg: ModelConfig) -> Json:
    moe = experts.find_experts(cfg)
    return llama_like.write_heads(cfg) | {
        "clip_qkv": cfg.qkv_clip or None,
        "attention_bias": "query" in cfg.bias_at,
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "norm_topk_prob": moe.normalize,
        **experts.write_router_losses(moe),
    }


PUBLISHED = llama_like.published(
    "olmoe",
    BODY,
    defaults=dict(intermediate_size=2048, rms_norm_eps=1e-5, pad_token_id=1),
    heads=llama_like.heads("Olmoe", only=("lm", "none")),
    read=read,
    write=write,
)
