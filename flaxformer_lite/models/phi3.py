"""Phi-3 and Phi-4-mini: Llama whose file fuses query, key and value, and gate and up.

Long text is rotated by longrope.

Reference: Abdin et al., "Phi-3 Technical Report: A Highly Capable Language Model Locally on Your
Phone" (2024), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import glm
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.models.weight_map import omit_prefixes, weight_rows

BASE = llama_like.BASE | dict(
    vocab_size=32064, max_length=4096, windows=(2047,), pad_token_id=32000
)
PRESETS = {
    "tiny": dict(
        d_model=128, num_heads=4, mlp_dim=344, decoder_layers=4, windows=(64,), pad_token_id=0
    ),
    "mini": dict(d_model=3072, num_heads=32, mlp_dim=8192, decoder_layers=32),
    "medium": dict(d_model=5120, num_heads=40, num_kv_heads=10, mlp_dim=17920, decoder_layers=40),
}
config = partial(build_config, "phi3", BASE, PRESETS, "mini")
Model = llama_like.LabelingModel
FUSED = weight_rows(
    (
        "self_attn.qkv_proj",
        ("attention/query", "attention/key", "attention/value"),
        "+OI",
    ),
    ("self_attn.o_proj", "attention/out"),
)
LAYER = omit_prefixes(glm.LAYER, "self_attn.") + FUSED
BODY = llama_like.decoder_body(LAYER)


def read(fields: Fields) -> ModelFields:
    """Reads positions; the types `su` and `yarn` of older files mean longrope."""
    scaling = fields.get("rope_scaling", {})
    if scaling.get("type", scaling.get("rope_type")) in ("su", "yarn"):
        fields.values["rope_scaling"] = {**scaling, "type": "longrope", "rope_type": "longrope"}
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 0),
        "head_dim": fields.get("head_dim", 0),
        "windows": (fields.nullable("sliding_window", 0),),
        "position": read_rope(fields, fraction="partial_rotary_factor"),
    }


def write(cfg: ModelConfig) -> Json:
    fields = {
        **llama_like.write_heads(cfg, fraction="partial_rotary_factor"),
        "sliding_window": cfg.windows[0] or None,
    }
    original = cfg.position.original_max_position_embeddings
    if original:
        fields["original_max_position_embeddings"] = original
    return fields


PUBLISHED = llama_like.published(
    "phi3",
    BODY,
    defaults=dict(original_max_position_embeddings=4096),
    heads=llama_like.heads("Phi3", only=Model.heads),
    fixed={"attention_bias": False},
    read=read,
    write=write,
)
