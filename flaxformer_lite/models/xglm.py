"""XGLM: a multilingual decoder with fairseq's sinusoidal positions.

Reference: Lin et al., "Few-shot Learning with Multilingual Generative Language Models" (2022),
section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import Published, add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal

PAD_ID = 1
POSITION = Sinusoidal(layout="halves", inclusive=True, offset=2, zero_at=PAD_ID)
BASE = dict(
    vocab_size=256008,
    max_length=2048,
    position=POSITION,
    norm_eps=1e-5,
    norm_at=("in", "final"),
    bias_at=("query", "key", "value", "out", "mlp"),
    embed_power=0.5,
    dropout=0.1,
    pad_token_id=PAD_ID,
)
PRESETS = {  # table 1
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=2),
    "564m": dict(d_model=1024, num_heads=16, mlp_dim=4096, decoder_layers=24),
    "1.7b": dict(d_model=2048, num_heads=16, mlp_dim=8192, decoder_layers=24),
    "7.5b": dict(d_model=4096, num_heads=32, mlp_dim=16384, decoder_layers=32),
}
config = partial(build_config, "xglm", BASE, PRESETS, "564m")


class Model(DecoderModel):
    heads = ("lm", "none")
    frozen_padding = ("tokens",)


LAYER = add_prefix("self_attn", "attention", bart_like.ATTENTION) + weight_rows(
    ("self_attn_layer_norm", "attention_in_norm"),
    ("fc1", "mlp/up"),
    ("fc2", "mlp/down"),
    ("final_layer_norm", "mlp_in_norm"),
)
BODY = (
    *weight_rows(("embed_tokens", "token_embed"), ("layer_norm", "decoder/final_norm")),
    *add_prefix("layers.{i}", "decoder/layer_{i}", LAYER),
)


def read(fields: Fields) -> ModelFields:
    scaled = fields.get("scale_embedding", True)
    padding = fields.nullable("pad_token_id", PAD_ID, null=None)
    position = dataclasses.replace(POSITION, zero_at=padding)
    return {"embed_power": 0.5 if scaled else 0.0, "position": position}


def write(cfg: ModelConfig) -> Json:
    return {"scale_embedding": cfg.embed_power == 0.5}


PUBLISHED = Published(
    model_type="xglm",
    prefix="model.",
    names=lambda cfg: BODY,
    heads=build_heads("XGLM", lm=weight_rows(("lm_head.weight", "lm_head/kernel")), none=()),
    fields=dict(
        d_model="d_model",
        ffn_dim="mlp_dim",
        num_layers="decoder_layers",
        attention_heads="num_heads",
        max_position_embeddings="max_length",
        activation_function="activation",
        dropout="dropout",
    ),
    fixed={"add_cross_attention": False},
    harmless=("decoder_start_token_id", "layerdrop"),
    read=read,
    write=write,
    ignored=(r"embed_positions\.weights",),
)
