"""Gemma 2: Gemma with norms on both sides of every layer and soft caps on logits.

Every other layer has a window.

Reference: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size" (2024), section
2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import gemma
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    omit_fields,
    read_windows,
    write_windows,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import omit_prefixes, weight_rows

BASE = gemma.BASE | dict(
    norm_at=("in", "branch", "final"),
    attention_softcap=50.0,
    logit_softcap=30.0,
    windows=(4096, 0),
    attention_scale=256**-0.5,
)
PRESETS = {  # table 1
    "tiny": llama_like.TINY | dict(head_dim=48, windows=(64, 0), attention_scale=48**-0.5),
    "2b": dict(d_model=2304, num_heads=8, num_kv_heads=4, mlp_dim=9216, decoder_layers=26),
    "9b": dict(d_model=3584, num_heads=16, num_kv_heads=8, mlp_dim=14336, decoder_layers=42),
    "27b": dict(
        d_model=4608,
        num_heads=32,
        num_kv_heads=16,
        head_dim=128,
        mlp_dim=36864,
        decoder_layers=46,
        attention_scale=144**-0.5,
    ),
}
config = partial(build_config, "gemma2", BASE, PRESETS, "9b")
Model = llama_like.LabelingModel
NORMS = weight_rows(
    ("post_attention_layernorm", "attention_branch_norm"),
    ("pre_feedforward_layernorm", "mlp_in_norm"),
    ("post_feedforward_layernorm", "mlp_branch_norm"),
)
LAYER = omit_prefixes(llama_like.LAYER, "post_attention_layernorm") + NORMS
BODY = llama_like.decoder_body(LAYER)
FIELDS = omit_fields(llama_like.FIELDS, "hidden_act") | {"hidden_activation": "activation"}


def read_caps(fields: Fields) -> ModelFields:
    return {field: fields.nullable(name, BASE[field]) for name, field in CAPS.items()}


def write_caps(cfg: ModelConfig) -> Json:
    return {name: getattr(cfg, field) or None for name, field in CAPS.items()}


def read(fields: Fields) -> ModelFields:
    """Reads windows and caps: every other layer slides, from the first on.

    Null means no cap; an absent field means the default.
    """
    layers = fields.get("num_hidden_layers", 26)
    window = fields.get("sliding_window", 4096)
    return llama_like.read_heads(fields, kv_heads=4, head_dim=256) | {
        "windows": read_windows(fields, layers, lambda i: i % 2 == 0, window),
        "attention_scale": fields.size("query_pre_attn_scalar", 256.0) ** -0.5,
        **read_caps(fields),
        **gemma.read_prompt(fields),
    }


def write(cfg: ModelConfig) -> Json:
    return (
        llama_like.write_heads(cfg)
        | gemma.write_activation(cfg, "hidden_activation")
        | gemma.write_prompt(cfg)
        | {
            **write_windows(cfg, 4096),
            **gemma.write_scale(cfg),
            **write_caps(cfg),
        }
    )


CAPS = {"attn_logit_softcapping": "attention_softcap", "final_logit_softcapping": "logit_softcap"}
PUBLISHED = llama_like.published(
    "gemma2",
    BODY,
    defaults=dict(
        hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8
    ),
    heads=gemma.heads("Gemma2"),
    fields=FIELDS,
    fixed=gemma.FIXED,
    harmless=("hidden_act", "sliding_window_size"),
    read=read,
    write=write,
)
