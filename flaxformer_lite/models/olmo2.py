"""OLMo 2: Llama with norms after attention and feed-forward instead of before them.

One more norm goes over the queries of all heads together, and one over the keys.

Reference: OLMo Team, "2 OLMo 2 Furious" (2025), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.models.weight_map import weight_rows
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=100352,
    max_length=4096,
    norm_eps=1e-6,
    norm_at=("branch", "final"),
    qk_norm="rms",
    qk_norm_over="all_heads",
    position=Rope(base=500000.0),
)
PRESETS = {  # table 3
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=344, decoder_layers=4),
    "1b": dict(d_model=2048, num_heads=16, mlp_dim=8192, decoder_layers=16),
    "7b": dict(d_model=4096, num_heads=32, mlp_dim=11008, decoder_layers=32),
    "32b": dict(d_model=5120, num_heads=40, num_kv_heads=8, mlp_dim=27648, decoder_layers=64),
}
config = partial(build_config, "olmo2", BASE, PRESETS, "7b")
Model = llama_like.SequenceModel
NORMS = weight_rows(
    ("post_attention_layernorm", "attention_branch_norm"),
    ("post_feedforward_layernorm", "mlp_branch_norm"),
)
LAYER = (
    tuple(row for row in llama_like.LAYER if "norm" not in row.name) + NORMS + llama_like.QK_NORMS
)
BODY = llama_like.decoder_body(LAYER)


def read_sizes(fields: Fields) -> ModelFields:
    biased = llama_like.attention_biases(fields)
    return llama_like.read_sizes(fields) | {
        "bias_at": biased,
    }


def read(fields: Fields) -> ModelFields:
    return read_sizes(fields) | {"position": read_rope(fields)}


def write(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | {"attention_bias": "query" in cfg.bias_at}


PUBLISHED = llama_like.published(
    "olmo2",
    BODY,
    defaults=dict(
        vocab_size=50304, rms_norm_eps=1e-5, max_position_embeddings=2048, pad_token_id=1
    ),
    heads=llama_like.heads("Olmo2", only=Model.heads),
    read=read,
    write=write,
)
