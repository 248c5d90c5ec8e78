"""The text model of Qwen3.5 with experts: layers of Qwen3.5, each with the experts of Qwen3-Next.

Reference: Qwen Team, "Qwen3.5" (2026).
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import qwen3_5_text, qwen3_next
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, weight_rows
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig

BASE = qwen3_5_text.BASE
MOE = MoeConfig(num_experts=256, experts_per_token=8, mlp_dim=512, shared_dim=512, shared_gate=True)
SMALL_MOE = MoeConfig(mlp_dim=86, shared_dim=86, shared_gate=True)
PRESETS = {
    "tiny": {**qwen3_next.SIZES_TINY, "feed_forward": SMALL_MOE},
    "35b_a3b": {**qwen3_next.SIZES_80B, "decoder_layers": 40, "feed_forward": MOE},
}
config = partial(build_config, "qwen3_5_moe_text", BASE, PRESETS, "35b_a3b")
Model = llama_like.LanguageModel


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 40)
    return qwen3_next.read_experts(
        fields, layers, num_experts=256, experts_per_token=8, normalize=True
    )


def write(cfg: ModelConfig) -> Json:
    fields = qwen3_next.write(cfg)
    # fields of Qwen3-Next alone: here all layers have experts, with normalized weights
    for name in ("norm_topk_prob", "mlp_only_layers", "decoder_sparse_step"):
        fields.pop(name)
    return fields


PUBLISHED = dataclasses.replace(
    qwen3_5_text.PUBLISHED,
    model_type="qwen3_5_moe_text",
    defaults=dict(
        hidden_size=2048,
        num_hidden_layers=40,
        num_attention_heads=16,
        max_position_embeddings=32768,
    ),
    heads={
        "lm": Head("Qwen3_5MoeForCausalLM", weight_rows(("lm_head.weight", "lm_head/kernel"))),
        "none": Head("Qwen3_5MoeTextModel"),
    },
    harmless=(),
    read=read,
    write=write,
)
