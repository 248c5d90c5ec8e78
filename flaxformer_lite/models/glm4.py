"""GLM-4-0414: GLM with norms on both sides of attention and feed-forward.

Reference: Team GLM, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools"
(2024); the norms are Gemma 2's.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import glm
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import weight_rows

BASE = glm.BASE | dict(norm_at=("in", "branch", "final"), max_length=32768)
PRESETS = glm.PRESETS | {
    "32b": dict(d_model=6144, num_heads=48, num_kv_heads=8, mlp_dim=23040, decoder_layers=61)
}
config = partial(build_config, "glm4", BASE, PRESETS, "9b")
Model = glm.Model
NORMS = weight_rows(
    ("post_self_attn_layernorm", "attention_branch_norm"),
    ("post_mlp_layernorm", "mlp_branch_norm"),
)
BODY = llama_like.decoder_body(glm.LAYER + NORMS)
PUBLISHED = dataclasses.replace(
    glm.PUBLISHED,
    model_type="glm4",
    defaults=dict(max_position_embeddings=131072),
    names=lambda cfg: BODY,
    heads=llama_like.heads("Glm4", only=Model.heads),
)
