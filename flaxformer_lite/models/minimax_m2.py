"""MiniMax-M2: the experts of Mixtral behind the router of DeepSeek-V3, and norms over all heads."""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import mixtral
from flaxformer_lite.models.common import experts, llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.models.weight_map import weight_rows
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.positions.rope import Rope

MOE = MoeConfig(
    num_experts=256,
    experts_per_token=8,
    score="sigmoid",
    router_bias_update_rate=0.001,
    balance=0.0,
)
BASE = llama_like.BASE | dict(
    vocab_size=200064,
    max_length=196608,
    norm_eps=1e-6,
    qk_norm="rms",
    qk_norm_over="all_heads",
    position=Rope(base=5000000.0, fraction=0.5),
    feed_forward=MOE,
)
SMALL_MOE = dataclasses.replace(MOE, num_experts=8, experts_per_token=2)
PRESETS = {
    "tiny": llama_like.TINY | dict(mlp_dim=86, feed_forward=SMALL_MOE),
    "230b_a10b": dict(  # transformers' defaults
        d_model=3072, num_heads=48, num_kv_heads=8, head_dim=128, mlp_dim=1536, decoder_layers=62
    ),
}
config = partial(build_config, "minimax_m2", BASE, PRESETS, "230b_a10b")
Model = llama_like.LanguageModel
CHOICE = weight_rows(("block_sparse_moe.e_score_correction_bias", "mlp/choice_bias"))
LAYER = mixtral.LAYER + llama_like.QK_NORMS + CHOICE
BODY = llama_like.decoder_body(LAYER)
FRACTION = "partial_rotary_factor"


def read(fields: Fields) -> ModelFields:
    fields.require("router_jitter_noise", 0.0)
    sizes = llama_like.read_sizes(fields, kv_heads=8, head_dim=128)
    rotary = fields.size("rotary_dim", sizes["head_dim"])
    return sizes | {
        "position": read_rope(
            fields, fraction=FRACTION, default_fraction=rotary / sizes["head_dim"]
        ),
        "feed_forward": dataclasses.replace(
            MOE,
            num_experts=fields.size("num_local_experts", 256),
            experts_per_token=fields.size("num_experts_per_tok", 8),
        ),
    }


def write(cfg: ModelConfig) -> Json:
    moe = experts.find_experts(cfg)
    return llama_like.write_heads(cfg, fraction=FRACTION) | {
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "rotary_dim": round(cfg.position.fraction * cfg.head_width),
        "shared_intermediate_size": 0,
    }


PUBLISHED = llama_like.published(
    "minimax_m2",
    BODY,
    defaults=dict(
        hidden_size=3072,
        intermediate_size=1536,
        num_hidden_layers=62,
        num_attention_heads=48,
        max_position_embeddings=196608,
        rope_theta=5000000.0,
    ),
    heads=llama_like.heads("MiniMaxM2", only=Model.heads),
    fixed={"output_router_logits": False},
    harmless=("router_aux_loss_coef", "shared_intermediate_size"),
    read=read,
    write=write,
)
