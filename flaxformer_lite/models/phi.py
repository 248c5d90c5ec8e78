"""Phi: a decoder whose attention and feed-forward run in parallel after one norm, as in GPT-J.

Rotary positions cover part of each head.

Reference: Gunasekar et al., "Textbooks Are All You Need" (2023), section 2.3; Li et al., "phi-1.5"
(2023), section 2.1.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import gpt2_like, llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.weight_map import add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

BASE = dict(
    vocab_size=51200,
    max_length=2048,
    position=Rope(fraction=0.5),
    norm_eps=1e-5,
    residual="parallel_shared",
    bias_at=("query", "key", "value", "out", "mlp", "logits"),
    activation="gelu_tanh",
    tie_embeddings=False,
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=4),
    "1": dict(d_model=2048, num_heads=32, mlp_dim=8192, decoder_layers=24),  # phi-1 and phi-1.5
    "2": dict(
        d_model=2560, num_heads=32, mlp_dim=10240, decoder_layers=32, position=Rope(fraction=0.4)
    ),
}
config = partial(build_config, "phi", BASE, PRESETS, "1")
Model = llama_like.LabelingModel

LAYER = weight_rows(
    ("input_layernorm", "attention_in_norm"),
    ("self_attn.q_proj", "attention/query"),
    ("self_attn.k_proj", "attention/key"),
    ("self_attn.v_proj", "attention/value"),
    ("self_attn.q_layernorm", "attention/query_norm"),
    ("self_attn.k_layernorm", "attention/key_norm"),
    ("self_attn.dense", "attention/out"),
    ("mlp.fc1", "mlp/up"),
    ("mlp.fc2", "mlp/down"),
)
BODY = (
    *weight_rows(("embed_tokens", "token_embed"), ("final_layernorm", "decoder/final_norm")),
    *add_prefix("layers.{i}", "decoder/layer_{i}", LAYER),
)


def read(fields: Fields) -> ModelFields:
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 0),
        "qk_norm": "layer" if fields.get("qk_layernorm", False) else "none",
        "position": read_rope(fields, fraction="partial_rotary_factor", default_fraction=0.5),
    }


def write(cfg: ModelConfig) -> Json:
    return {
        "num_key_value_heads": cfg.kv_heads,
        "qk_layernorm": cfg.qk_norm == "layer",
        **write_rope(cfg.position, fraction="partial_rotary_factor"),
    }


LM_HEAD = weight_rows(("lm_head.weight", "lm_head/kernel"), ("lm_head.bias", "lm_head/bias"))
PUBLISHED = llama_like.published(
    "phi",
    BODY,
    heads=build_heads(
        "Phi",
        lm=LM_HEAD,
        sequence_classification=gpt2_like.SCORE,
        token_classification=gpt2_like.SCORE,
        none=(),
    ),
    fields=omit_fields(llama_like.FIELDS, "rms_norm_eps") | {"layer_norm_eps": "norm_eps"},
    read=read,
    write=write,
)
