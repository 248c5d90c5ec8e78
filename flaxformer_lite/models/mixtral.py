"""Mixtral: Mistral with a mixture of experts in place of every feed-forward.

Reference: Jiang et al., "Mixtral of Experts" (2024), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import experts, llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import omit_prefixes, weight_rows
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    max_length=32768, position=Rope(base=1e6), feed_forward=MoeConfig(balance=0.02)
)
PRESETS = {  # table 1
    "tiny": llama_like.TINY | dict(mlp_dim=172, feed_forward=MoeConfig(num_experts=4)),
    "8x7b": dict(d_model=4096, num_heads=32, num_kv_heads=8, mlp_dim=14336, decoder_layers=32),
    "8x22b": dict(
        d_model=6144,
        num_heads=48,
        num_kv_heads=8,
        mlp_dim=16384,
        decoder_layers=56,
        max_length=65536,
    ),
}
config = partial(build_config, "mixtral", BASE, PRESETS, "8x7b")
Model = llama_like.Model
EXPERTS = weight_rows(
    ("block_sparse_moe.gate", "mlp/router"),
    ("block_sparse_moe.experts.{e}.w1", "mlp/expert_{e}/gate"),
    ("block_sparse_moe.experts.{e}.w3", "mlp/expert_{e}/up"),
    ("block_sparse_moe.experts.{e}.w2", "mlp/expert_{e}/down"),
)
LAYER = omit_prefixes(llama_like.LAYER, "mlp.") + EXPERTS
BODY = llama_like.decoder_body(LAYER)


def read(fields: Fields) -> ModelFields:
    fields.require("router_jitter_noise", 0.0)  # of training, on what the experts read, too
    return llama_like.read_heads(fields, kv_heads=8) | {
        "windows": (fields.nullable("sliding_window", 0),),
        "feed_forward": MoeConfig(
            num_experts=fields.size("num_local_experts", 8),
            experts_per_token=fields.size("num_experts_per_tok", 2),
            **experts.read_router_losses(fields),
        ),
    }


def write(cfg: ModelConfig) -> Json:
    moe = experts.find_experts(cfg)
    return llama_like.write_heads(cfg) | {
        "sliding_window": cfg.windows[0] or None,
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        **experts.write_router_losses(moe),
    }


PUBLISHED = llama_like.published(
    "mixtral",
    BODY,
    defaults=dict(max_position_embeddings=131072, rope_theta=1e6, rms_norm_eps=1e-5),
    heads=llama_like.heads("Mixtral", "model."),
    read=read,
    write=write,
)
