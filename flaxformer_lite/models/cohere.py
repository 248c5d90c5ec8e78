"""Cohere's Command R: attention and gated feed-forward in parallel after one norm without bias.

Logits are scaled, rotary pairs are interleaved, and each head may have a norm of its own on queries
and keys.

Reference: Cohere, "Command A: An Enterprise-Ready Large Language Model" (2025), section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.models.weight_map import omit_prefixes
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=256000,
    max_length=8192,
    norm="layer_no_bias",
    residual="parallel_shared",
    position=Rope(base=500000.0, layout="interleaved"),
    logit_multiplier=0.0625,
    tie_embeddings=True,
    qk_norm_over="each_head",
    pad_token_id=0,
)
PRESETS = {
    "tiny": llama_like.TINY,
    "command_r": dict(d_model=8192, num_heads=64, mlp_dim=22528, decoder_layers=40),
}
config = partial(build_config, "cohere", BASE, PRESETS, "command_r")


Model = llama_like.LanguageModel


LAYER = omit_prefixes(llama_like.LAYER, "post_attention_layernorm")
BODY = llama_like.decoder_body(LAYER + llama_like.QK_NORMS)
FIELDS = omit_fields(llama_like.FIELDS, "rms_norm_eps") | dict(
    layer_norm_eps="norm_eps", logit_scale="logit_multiplier"
)


def read_attention(fields: Fields) -> ModelFields:
    biased = llama_like.attention_biases(fields)
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 0),
        "head_dim": fields.get("head_dim", 0),
        "position": dataclasses.replace(read_rope(fields), layout="interleaved"),
        "bias_at": biased,
    }


def read(fields: Fields) -> ModelFields:
    normed = fields.get("use_qk_norm", False)
    return read_attention(fields) | {"qk_norm": "layer_no_bias" if normed else "none"}


def write_attention(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | {"attention_bias": "query" in cfg.bias_at}


PUBLISHED = llama_like.published(
    "cohere",
    BODY,
    defaults=dict(rope_theta=500000.0),
    heads=llama_like.heads("Cohere", only=Model.heads),
    fields=FIELDS,
    harmless=("model_max_length",),
    read=read,
    write=lambda cfg: write_attention(cfg) | {"use_qk_norm": cfg.qk_norm != "none"},
)
