"""gpt-oss: a decoder of experts, with sinks in its attention and every other layer local.

Its experts clip the gate and what it multiplies, and have biases, as the router has. Published
files hold the experts' matrices in MXFP4 (pretrained/tensor_forms.py).

Reference: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025), section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import experts, llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    omit_fields,
    read_windows,
    write_windows,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_unscaled
from flaxformer_lite.models.weight_map import omit_prefixes, weight_rows
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.positions.rope import Rope

WINDOW_TOKENS = 128
ATTENTION_BIASES = ("query", "key", "value", "out")
GATE_ALPHA = 1.702  # of the gate, x * sigmoid(alpha x), which is quick_gelu
YARN = Rope(
    base=150000.0,
    scaling="yarn",
    factor=32.0,
    original_max_position_embeddings=4096,
    truncate=False,
)
EXPERTS_20B = MoeConfig(
    num_experts=32,
    experts_per_token=4,
    router_bias=True,
    limit=7.0,
    up_offset=1.0,
    balance=0.001,
)
BASE = llama_like.BASE | dict(
    vocab_size=201088,
    max_length=131072,
    position=YARN,
    activation="quick_gelu",
    bias_at=(*ATTENTION_BIASES, "mlp"),
    windows=(WINDOW_TOKENS, 0),
    attention_sinks=True,
    feed_forward=EXPERTS_20B,
)
LARGE = dict(d_model=2880, num_heads=64, num_kv_heads=8, head_dim=64, mlp_dim=2880)
PRESETS = {  # table 1
    "tiny": llama_like.TINY
    | dict(
        head_dim=32,
        mlp_dim=128,
        windows=(32, 0),
        position=Rope(base=150000.0),
        feed_forward=dataclasses.replace(EXPERTS_20B, num_experts=8, experts_per_token=2),
    ),
    "20b": LARGE | dict(decoder_layers=24),
    "120b": LARGE
    | dict(
        decoder_layers=36,
        feed_forward=dataclasses.replace(EXPERTS_20B, num_experts=128),
    ),
}
config = partial(build_config, "gpt_oss", BASE, PRESETS, "20b")
Model = llama_like.Model
EXPERTS = weight_rows(
    ("mlp.router", "mlp/router"),
    (
        "mlp.experts.gate_up_proj",
        ("mlp/expert_{e}/gate/kernel", "mlp/expert_{e}/up/kernel"),
        "XIO2",
    ),
    (
        "mlp.experts.gate_up_proj_bias",
        ("mlp/expert_{e}/gate/bias", "mlp/expert_{e}/up/bias"),
        "XIO2",
    ),
    ("mlp.experts.down_proj", "mlp/expert_{e}/down/kernel", "XIO"),
    ("mlp.experts.down_proj_bias", "mlp/expert_{e}/down/bias", "XIO"),
)
LAYER = omit_prefixes(llama_like.LAYER, "mlp.") + EXPERTS
LAYER += weight_rows(("self_attn.sinks", "attention/sinks"))
BODY = llama_like.decoder_body(LAYER)


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 36)
    window = fields.nullable("sliding_window", WINDOW_TOKENS)
    windows = read_windows(fields, layers, lambda i: i % 2 == 0, window)
    fields.require("swiglu_alpha", GATE_ALPHA)
    yarn = dataclasses.replace(YARN, base=fields.get("rope_theta", YARN.base))
    biased = ATTENTION_BIASES if fields.get("attention_bias", True) else ()
    return llama_like.read_sizes(fields, kv_heads=8, head_dim=64) | {
        "position": read_rope(fields, usual=yarn),
        "windows": windows,
        "activation": "quick_gelu",
        "bias_at": (*biased, "mlp"),
        "feed_forward": dataclasses.replace(
            EXPERTS_20B,
            num_experts=fields.size("num_local_experts", 128),
            experts_per_token=fields.size("num_experts_per_tok", 4),
            limit=fields.get("swiglu_limit", 7.0),
            **experts.read_router_losses(fields),
        ),
    }


def write(cfg: ModelConfig) -> Json:
    moe = experts.find_experts(cfg)
    return llama_like.write_heads(cfg) | {
        **write_unscaled(cfg.position),
        **write_windows(cfg, WINDOW_TOKENS),
        "attention_bias": "query" in cfg.bias_at,
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "swiglu_alpha": GATE_ALPHA,
        "swiglu_limit": moe.limit,
        **experts.write_router_losses(moe),
    }


FIELDS = omit_fields(llama_like.FIELDS, "hidden_act")
PUBLISHED = llama_like.published(
    "gpt_oss",
    BODY,
    defaults=dict(num_hidden_layers=36, rms_norm_eps=1e-5, rope_theta=150000.0),
    heads=llama_like.heads(
        "GptOss", only=("lm", "none", "sequence_classification", "token_classification")
    ),
    fields=FIELDS,
    # hidden_act is not read by transformers; two are the reference implementation's names
    harmless=("experts_per_token", "initial_context_length", "hidden_act"),
    read=read,
    write=write,
)
