"""The text model of Qwen3.5: dense layers of Qwen3-Next with separate projections.

Positions of text are the same on all axes of its rotary positions.

Reference: Qwen Team, "Qwen3.5" (2026).
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import qwen3_next
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, weight_rows

BASE = qwen3_next.BASE | dict(vocab_size=248320)
PRESETS = {
    "tiny": qwen3_next.PRESETS["tiny"],
    # transformers' defaults
    "9b": dict(
        d_model=4096, num_heads=16, num_kv_heads=4, head_dim=256, mlp_dim=12288, decoder_layers=32
    ),
}
config = partial(build_config, "qwen3_5_text", BASE, PRESETS, "9b")


class Model(llama_like.Model):
    heads = ("lm", "sequence_classification", "none")


PROJECTIONS = weight_rows(
    ("in_proj_qkv", ("query", "key", "value"), "+OI"),
    ("in_proj_z", "gate"),
    ("in_proj_b", "rate"),
    ("in_proj_a", "decay"),
)
BODY = llama_like.decoder_body(qwen3_next.layer(PROJECTIONS))
SPELLED = llama_like.heads("Qwen3_5Text", only=("sequence_classification", "none"))


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 32)
    return qwen3_next.read_layers(fields, layers) | {
        "num_kv_heads": fields.get("num_key_value_heads", 4)
    }


PUBLISHED = dataclasses.replace(
    qwen3_next.PUBLISHED,
    model_type="qwen3_5_text",
    defaults=dict(
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=32,
        num_attention_heads=16,
        max_position_embeddings=32768,
    ),
    names=lambda cfg: BODY,
    heads={
        "lm": Head("Qwen3_5ForCausalLM", weight_rows(("lm_head.weight", "lm_head/kernel"))),
        **SPELLED,
    },
    harmless=(),
    read=read,
    write=qwen3_next.write_layers,
    ignored=(*qwen3_next.PUBLISHED.ignored, r"model\.visual\..*"),
)
