"""DeepSeek-V3: DeepSeek-V2 with a sigmoid for each expert, and a bias that evens out their load.

Reference: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.1.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import deepseek_v2
from flaxformer_lite.models.common import experts, llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig

BASE = deepseek_v2.BASE | dict(vocab_size=129280, max_length=4096)
MOE = MoeConfig(  # section 4.2
    num_experts=256,
    experts_per_token=8,
    mlp_dim=2048,
    shared_dim=2048,
    score="sigmoid",
    scale=2.5,
    groups=8,
    groups_per_token=4,
    router_bias_update_rate=0.001,
    balance=0.0,
)
SMALL_MOE = dataclasses.replace(
    MOE, num_experts=8, experts_per_token=2, mlp_dim=86, shared_dim=86, groups=4, groups_per_token=2
)
PRESETS = {
    "tiny": deepseek_v2.PRESETS["tiny"] | dict(feed_forward=SMALL_MOE),
    "671b": dict(
        d_model=7168,
        num_heads=128,
        mlp_dim=18432,
        decoder_layers=61,
        **deepseek_v2.sparse_after(3, 61, MOE),
    ),
}
config = partial(build_config, "deepseek_v3", BASE, PRESETS, "671b")
Model = llama_like.LabelingModel


def with_normalized(fields: Fields, moe: MoeConfig) -> MoeConfig:
    return dataclasses.replace(moe, normalize=fields.get("norm_topk_prob", True))


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 61)
    experts = deepseek_v2.read_experts(fields, layers, 3, with_normalized(fields, MOE))
    return deepseek_v2.read_attention(fields) | experts


def write_experts(cfg: ModelConfig) -> Json:
    fields = deepseek_v2.write_experts(cfg)
    if "n_routed_experts" not in fields:
        return fields
    moe = experts.find_experts(cfg)
    if moe.score != "sigmoid" or not moe.router_bias_update_rate:
        raise ConfigError(
            f"score={moe.score!r}, router_bias_update_rate={moe.router_bias_update_rate}: published"
            f" files of family={cfg.family!r} have a sigmoid and a bias; set score=sigmoid and a"
            " router_bias_update_rate."
        )
    return fields | {"norm_topk_prob": moe.normalize}


def write(cfg: ModelConfig) -> Json:
    halves = getattr(cfg.position, "layout", "") == "halves"
    return deepseek_v2.write_attention(cfg) | write_experts(cfg) | {"rope_interleave": not halves}


PUBLISHED = dataclasses.replace(
    deepseek_v2.PUBLISHED,
    model_type="deepseek_v3",
    defaults=dict(
        hidden_size=7168,
        intermediate_size=18432,
        num_hidden_layers=61,
        num_attention_heads=128,
        max_position_embeddings=4096,
    ),
    heads=llama_like.heads("DeepseekV3", only=Model.heads),
    fixed={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
    harmless=(
        "head_dim",
        "qk_head_dim",
        "output_router_logits",
        "num_nextn_predict_layers",
        "num_mtp_layers",
        "ep_size",
        "seq_aux",
        "aux_loss_alpha",
    ),
    read=read,
    write=write,
    left_out={r"layers\.{layers}\..*": "the prediction of a second token is not computed"},
)
