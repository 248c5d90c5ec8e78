"""The decoder of T5 alone, as flaxformer's DecoderOnly and its parallel layers with fused kernels.

There is no such model in transformers: its files have the names of T5's decoder, and are read here
alone. Texts begin with id 0.

Reference: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer" (2020), section 3.2.1 (language model); for parallel layers with one key head Chowdhery
et al., "PaLM" (2022), section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import gpt2_like, t5_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    WeightRow,
    add_prefix,
    build_heads,
    weight_rows,
)
from flaxformer_lite.nn.positions.rope import Rope

BASE = t5_like.BASE
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, head_dim=32, mlp_dim=512, decoder_layers=2),
    "base": dict(d_model=768, num_heads=12, head_dim=64, mlp_dim=3072, decoder_layers=12),
}
config = partial(build_config, "t5_decoder", BASE, PRESETS, "base")


class Model(DecoderModel):
    heads = ("lm", "none")


TABLE = "layer.0.SelfAttention.relative_attention_bias.weight"


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    layer = weight_rows(
        ("layer.0.layer_norm", "attention_in_norm"),
        (TABLE, "attention/position/relative"),
        ("layer.1.layer_norm", "mlp_in_norm"),
    )
    layer += add_prefix("layer.0.SelfAttention", "attention", t5_like.ATTENTION)
    layer += add_prefix("layer.1.DenseReluDense", "mlp", t5_like.feed_forward_rows(cfg))
    return (
        *weight_rows(
            ("shared", "token_embed"),
            ("decoder.final_layer_norm", "decoder/final_norm"),
            (f"decoder.block.0.{TABLE}", "decoder/position/relative"),
        ),
        *add_prefix("decoder.block.{i}", "decoder/layer_{i}", layer),
    )


def read(fields: Fields) -> ModelFields:
    sizes = t5_like.read(fields)
    for name in ("decoder_layers", "decoder_start_token_id", "eos_token_id"):
        del sizes[name]
    per_layer = fields.get("relative_attention_per_layer", False)
    position = dataclasses.replace(sizes["position"], per_layer=per_layer)
    rotary = fields.get("rope_theta", kind=float) is not None
    return sizes | {
        "num_kv_heads": fields.get("num_key_value_heads", 0),
        "position": read_rope(fields) if rotary else position,
        "residual": "parallel_shared" if fields.get("parallel", False) else "sequential",
    }


def write(cfg: ModelConfig) -> Json:
    fields: Json = {
        "num_key_value_heads": cfg.kv_heads,
        "parallel": cfg.residual == "parallel_shared",
        "is_encoder_decoder": False,
        "scale_decoder_outputs": bool(cfg.logit_power),
    }
    name = t5_like.projection(cfg)
    if isinstance(cfg.position, Rope):
        return fields | {"feed_forward_proj": name, **write_rope(cfg.position)}
    return fields | {
        "feed_forward_proj": name,
        "relative_attention_num_buckets": cfg.position.num_buckets,
        "relative_attention_max_distance": cfg.position.max_distance,
        "relative_attention_per_layer": cfg.position.per_layer,
    }


PUBLISHED = Published(
    model_type="t5_decoder",
    names=names,
    heads=build_heads("T5Decoder", lm=gpt2_like.LM_HEAD, none=()),
    fields=dict(
        d_model="d_model",
        d_kv="head_dim",
        d_ff="mlp_dim",
        num_layers="decoder_layers",
        num_heads="num_heads",
        layer_norm_epsilon="norm_eps",
        dropout_rate="dropout",
    ),
    read=read,
    write=write,
)
