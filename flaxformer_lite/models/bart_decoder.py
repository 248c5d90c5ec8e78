"""BART's decoder alone, as a language model: no encoder, and no cross-attention.

transformers' BartForCausalLM keeps the cross-attention in its files, where it computes nothing;
here it is not read, and files are written with zeros in its place.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bart
from flaxformer_lite.models.common import bart_decoder_like, bart_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import (
    add_prefix,
    build_heads,
    weight_rows,
)

BASE = bart_decoder_like.BASE
PRESETS = bart_decoder_like.PRESETS
Model = bart_decoder_like.Model

config = partial(build, "bart_decoder", bart_decoder_like.BASE, bart_decoder_like.PRESETS, "large")


def names(cfg: ModelConfig) -> tuple:
    """Returns the weight rows; norms have the same names before a layer and after it."""
    slot = "out" if "out" in cfg.norm_at else "in"
    layer = add_prefix("self_attn", "attention", bart_like.ATTENTION) + weight_rows(
        ("self_attn_layer_norm", f"attention_{slot}_norm"),
        ("fc1", "mlp/up"),
        ("fc2", "mlp/down"),
        ("final_layer_norm", f"mlp_{slot}_norm"),
    )
    ends = weight_rows(
        ("embed_tokens", "token_embed"),
        ("embed_positions.weight", "embed/position/position"),
        ("layernorm_embedding", "embed/norm"),
        ("layer_norm", "decoder/final_norm"),
    )
    return add_prefix("decoder", "", ends + add_prefix("layers.{i}", "decoder/layer_{i}", layer))


FIELDS = dict(
    d_model="d_model",
    decoder_layers="decoder_layers",
    decoder_attention_heads="num_heads",
    decoder_ffn_dim="mlp_dim",
    max_position_embeddings="max_length",
    activation_function="activation",
    dropout="dropout",
)
ENCODER = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")


def write(cfg: ModelConfig) -> Json:
    """Writes sizes of an encoder too, as transformers' caches take their number of layers."""
    return {
        "encoder_layers": cfg.decoder_layers,
        "encoder_attention_heads": cfg.num_heads,
        "encoder_ffn_dim": cfg.mlp_dim,
        "scale_embedding": cfg.embed_power == 0.5,
        "is_decoder": True,
        "is_encoder_decoder": False,
    }


PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    names=names,
    heads=build_heads("Bart", lm=bart_decoder_like.LM_HEAD),
    fields=FIELDS,
    harmless=(*bart_like.HARMLESS, *ENCODER, "is_decoder"),
    fixed={},
    read=bart_decoder_like.read,
    write=write,
    duplicates={},
    derived=bart_decoder_like.cross_attention,
    optional=(),
    ignored=(*bart.PUBLISHED.ignored, r"decoder\.layers\.\d+\.encoder_attn(_layer_norm)?\..*"),
    relatives={},
)
