"""HyperCLOVA X: Granite with norms on both sides of attention and feed-forward.

Reference: NAVER Cloud HyperCLOVA X Team, "HyperCLOVA X THINK Technical Report" (2025), section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import granite
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import weight_rows

BASE = llama_like.BASE | dict(
    vocab_size=128256, max_length=131072, norm_at=("in", "branch", "final")
)
PRESETS = {
    "tiny": llama_like.TINY,
    "14b": dict(d_model=6144, num_heads=48, num_kv_heads=8, mlp_dim=14336, decoder_layers=38),
}
config = partial(build_config, "hyperclovax", BASE, PRESETS, "14b")
Model = granite.Model

NORMS = weight_rows(("post_norm1", "attention_branch_norm"), ("post_norm2", "mlp_branch_norm"))
BODY = llama_like.decoder_body(llama_like.LAYER + NORMS)
BOTH = ("in", "branch", "final")


def read(fields: Fields) -> ModelFields:
    """Reads the multipliers as Granite's; its logits are multiplied, Granite's divided."""
    options = granite.read(fields)
    return options | {
        "attention_scale": fields.get("attention_multiplier", kind=float),
        "logit_multiplier": fields.get("logits_scaling", 1.0),
        "norm_at": BOTH if fields.get("use_post_norm", True) else ("in", "final"),
    }


def write(cfg: ModelConfig) -> Json:
    return granite.write(cfg) | {
        "logits_scaling": cfg.logit_multiplier,
        "use_post_norm": "branch" in cfg.norm_at,
    }


PUBLISHED = dataclasses.replace(
    granite.PUBLISHED,
    model_type="hyperclovax",
    defaults=llama_like.DEFAULTS | dict(vocab_size=32000),
    names=lambda cfg: BODY,
    heads=llama_like.heads("HyperCLOVAX", only=Model.heads),
    read=read,
    write=write,
)
