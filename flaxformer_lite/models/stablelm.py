"""StableLM: Llama with layer norms and rotary positions on a quarter of each head.

Reference: Bellagente et al., "Stable LM 2 1.6B Technical Report" (2024), section 3.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import cohere
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.weight_map import add_prefix, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=100352,
    max_length=4096,
    norm="layer",
    position=Rope(fraction=0.25),
    qk_norm_over="each_head",
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=344, decoder_layers=4),
    "2_1.6b": dict(
        d_model=2048,
        num_heads=32,
        mlp_dim=5632,
        decoder_layers=24,
        bias_at=("query", "key", "value"),
    ),
    "2_12b": dict(
        d_model=5120,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=13824,
        decoder_layers=40,
        residual="parallel_shared",
        qk_norm="layer_no_bias",
    ),
    "3b": dict(d_model=2560, num_heads=32, mlp_dim=6912, decoder_layers=32, vocab_size=50304),
}
config = partial(build_config, "stablelm", BASE, PRESETS, "3b")
Model = llama_like.LabelingModel
HEAD_NORMS = add_prefix(
    "layers.{i}.self_attn",
    "decoder/layer_{i}/attention",
    weight_rows(
        ("q_layernorm.norms.{h}", "query_norm/head_{h}"),
        ("k_layernorm.norms.{h}", "key_norm/head_{h}"),
    ),
)
FIELDS = omit_fields(cohere.FIELDS, "logit_scale")


def read(fields: Fields) -> ModelFields:
    shared = fields.get("use_parallel_residual", False)
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 32),
        "position": read_rope(fields, fraction="partial_rotary_factor", default_fraction=0.25),
        "residual": "parallel_shared" if shared else "sequential",
        "bias_at": ("query", "key", "value") if fields.get("use_qkv_bias", False) else (),
        "qk_norm": "layer_no_bias" if fields.get("qk_layernorm", False) else "none",
    }


def write(cfg: ModelConfig) -> Json:
    return {
        "num_key_value_heads": cfg.kv_heads,
        "use_parallel_residual": cfg.residual == "parallel_shared",
        "use_qkv_bias": "query" in cfg.bias_at,
        "qk_layernorm": cfg.qk_norm != "none",
        **write_rope(cfg.position, fraction="partial_rotary_factor"),
    }


PUBLISHED = llama_like.published(
    "stablelm",
    names=lambda cfg: llama_like.BODY + (HEAD_NORMS if cfg.qk_norm != "none" else ()),
    heads=llama_like.heads("StableLm", only=Model.heads),
    fields=FIELDS,
    read=read,
    write=write,
    heads_apart=("query_norm", "key_norm"),
)
