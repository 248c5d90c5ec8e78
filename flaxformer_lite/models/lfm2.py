"""LFM2: gated convolutions over three tokens, and a few layers of grouped-query attention.

Reference: Liquid AI, "LFM2 Technical Report" (2025), section 2.
"""

import math
from functools import partial

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    omit_fields,
    read_types,
    repeat_pattern,
    shortest_pattern,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import add_prefix, attention_rows, weight_rows
from flaxformer_lite.nn.mixers.short_convolution import ShortConvolutionConfig
from flaxformer_lite.nn.positions.rope import Rope

CONVOLUTION = ShortConvolutionConfig()
FULL = "full_attention"
CONV = LayerKind(mixer=CONVOLUTION)
BASE = llama_like.BASE | dict(
    vocab_size=65536,
    max_length=128000,
    position=Rope(base=1000000.0),
    qk_norm="rms",
    tie_embeddings=True,
)
PRESETS = {
    "tiny": llama_like.TINY | dict(pattern=(CONV, LayerKind())),
    "1.2b": dict(  # of LiquidAI/LFM2-1.2B
        d_model=2048,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=8192,
        decoder_layers=16,
        pattern=(CONV, CONV, LayerKind()) * 3 + (CONV, LayerKind()) * 3 + (CONV,),
    ),
}
config = partial(build_config, "lfm2", BASE, PRESETS, "1.2b")
Model = llama_like.LanguageModel
ATTENTION = attention_rows("q_proj", "k_proj", "v_proj", "out_proj") + weight_rows(
    ("q_layernorm", "query_norm"), ("k_layernorm", "key_norm")
)
CONV_ROWS = weight_rows(
    ("in_proj", "input"),
    ("conv.weight", "taps"),
    ("out_proj", "out"),
)
LAYER = (
    *add_prefix("self_attn", "attention", ATTENTION),
    *add_prefix("conv", "short_conv", CONV_ROWS),
    *weight_rows(
        ("operator_norm", "attention_in_norm"),
        ("operator_norm", "short_conv_in_norm"),
        ("ffn_norm", "mlp_in_norm"),
        ("feed_forward.w1", "mlp/gate"),
        ("feed_forward.w3", "mlp/up"),
        ("feed_forward.w2", "mlp/down"),
    ),
)
ENDS = weight_rows(("embed_tokens", "token_embed"), ("embedding_norm", "decoder/final_norm"))
BODY = ENDS + add_prefix("layers.{i}", "decoder/layer_{i}", LAYER)


def read_mlp_dim(fields: Fields) -> int:
    """Reads the width of the feed-forward: as it is, or two thirds of it, rounded up."""
    size = fields.get("block_ff_dim", fields.get("intermediate_size", 12288))
    multiple = fields.size("block_multiple_of", 256)
    factor = fields.nullable("block_ffn_dim_multiplier", 1.0)
    if fields.get("block_auto_adjust_ff_dim", True):
        size = 2 * size // 3
        if factor:
            size = math.ceil(int(factor * size) / multiple) * multiple
    return size


def read(fields: Fields) -> ModelFields:
    conv = ShortConvolutionConfig(taps=fields.size("conv_L_cache", 3))
    layers = fields.get("num_hidden_layers", 32)
    attends = fields.get("full_attn_idxs", list(range(layers)))
    usual = [FULL if i in attends else "conv" for i in range(layers)]
    kinds = {"conv": LayerKind(mixer=conv), FULL: LayerKind()}
    return omit_fields(llama_like.read_heads(fields, kv_heads=8), "norm_eps") | {
        "mlp_dim": read_mlp_dim(fields),
        "pattern": shortest_pattern([kinds[name] for name in read_types(fields, kinds, usual)]),
    }


def write(cfg: ModelConfig) -> Json:
    mixers = [kind.mixer for kind in repeat_pattern(cfg.kinds, cfg.decoder_layers)]
    conv = next(filter(None, mixers), CONVOLUTION)
    assert isinstance(conv, ShortConvolutionConfig)
    return llama_like.write_heads(cfg) | {
        "intermediate_size": cfg.mlp_dim,
        # The rule that it turns off, in the sizes that the published files have.
        "block_auto_adjust_ff_dim": False,
        "block_dim": cfg.d_model,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "conv_L_cache": conv.taps,
        "layer_types": ["conv" if mixer else FULL for mixer in mixers],
    }


PUBLISHED = llama_like.published(
    "lfm2",
    BODY,
    fields=omit_fields(llama_like.FIELDS, "intermediate_size", "hidden_act", "rms_norm_eps")
    | dict(norm_eps="norm_eps"),
    defaults=dict(
        hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, rope_theta=1000000.0
    ),
    fixed={"conv_bias": False},
    # of the tables, the file decides where they differ
    harmless=("block_dim", "tie_embedding"),
    heads=llama_like.heads("Lfm2", only=Model.heads),
    read=read,
    write=write,
)
