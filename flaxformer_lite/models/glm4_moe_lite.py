"""GLM-4.7-Flash: the latent attention of DeepSeek-V3 with the experts of GLM-4.5."""

import dataclasses
from functools import partial

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.models import deepseek_v2, deepseek_v3, glm4_moe
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.mixers.latent_attention import LatentAttentionConfig

FIRST = "first_k_dense_replace"
MOE = dataclasses.replace(
    glm4_moe.MOE, num_experts=64, experts_per_token=4, mlp_dim=1536, shared_dim=1536, scale=1.8
)
LATENT = LatentAttentionConfig(
    kv_rank=512, q_rank=768, content_dim=192, rotary_dim=64, value_dim=256
)
BASE = deepseek_v2.BASE | dict(vocab_size=154880, max_length=202752, norm_eps=1e-5, mixer=LATENT)
PRESETS = {
    "tiny": deepseek_v2.PRESETS["tiny"] | dict(feed_forward=glm4_moe.SMALL_MOE),
    "30b_a3b": dict(  # transformers' defaults
        d_model=2048,
        num_heads=20,
        mlp_dim=10240,
        decoder_layers=47,
        **deepseek_v2.sparse_after(1, 47, MOE),
    ),
}
config = partial(build_config, "glm4_moe_lite", BASE, PRESETS, "30b_a3b")
Model = llama_like.LanguageModel


def layer_kinds(dense: int, layers: int) -> list[str]:
    return ["dense"] * dense + ["sparse"] * (layers - dense)


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 47)
    kinds = fields.get("mlp_layer_types", layer_kinds(1, layers))
    dense = kinds.count("dense")
    if kinds != layer_kinds(dense, layers):
        raise ConfigError(
            f"config.json: mlp_layer_types={quote_value(kinds)}: must be dense layers, then sparse"
            f" ones, {layers} in all."
        )
    fields.values[FIRST] = dense  # the name in DeepSeek's files
    moe = deepseek_v3.with_normalized(fields, MOE)
    return {
        **deepseek_v2.read_attention(fields),
        **deepseek_v2.read_experts(fields, layers, 1, moe),
    }


def write(cfg: ModelConfig) -> Json:
    written = deepseek_v3.write(cfg)
    return written | {"mlp_layer_types": layer_kinds(written.pop(FIRST), cfg.decoder_layers)}


PUBLISHED = dataclasses.replace(
    deepseek_v3.PUBLISHED,
    model_type="glm4_moe_lite",
    defaults=dict(
        rms_norm_eps=1e-5,
        hidden_size=2048,
        intermediate_size=10240,
        num_hidden_layers=47,
        num_attention_heads=20,
        max_position_embeddings=202752,
        q_lora_rank=768,
        qk_nope_head_dim=192,
        v_head_dim=256,
    ),
    heads=llama_like.heads("Glm4MoeLite", only=Model.heads),
    read=read,
    write=write,
)
