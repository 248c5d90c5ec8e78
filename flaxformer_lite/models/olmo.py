"""OLMo: Llama with layer norms that have no weights.

Larger models clip queries, keys and values.

Reference: Groeneveld et al., "OLMo: Accelerating the Science of Language Models" (2024), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config

BASE = llama_like.BASE | dict(vocab_size=50304, norm="layer_no_affine", norm_eps=1e-5)
PRESETS = {  # table 1
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=344, decoder_layers=4),
    "1b": dict(d_model=2048, num_heads=16, mlp_dim=8192, decoder_layers=16, tie_embeddings=True),
    "7b": dict(d_model=4096, num_heads=32, mlp_dim=11008, decoder_layers=32),
}
config = partial(build_config, "olmo", BASE, PRESETS, "7b")


Model = llama_like.SequenceModel


FIELDS = omit_fields(llama_like.FIELDS, "rms_norm_eps")


def read(fields: Fields) -> ModelFields:
    biased = llama_like.attention_biases(fields)
    shared = llama_like.read_heads(fields)
    shared.pop("norm_eps")  # not in the file
    return shared | {"qkv_clip": fields.get("clip_qkv", 0.0), "bias_at": biased}


def write(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | {
        "clip_qkv": cfg.qkv_clip or None,
        "attention_bias": "query" in cfg.bias_at,
    }


PUBLISHED = llama_like.published(
    "olmo",
    defaults=dict(pad_token_id=1),
    heads=llama_like.heads("Olmo", only=Model.heads),
    fields=FIELDS,
    harmless=("rms_norm_eps",),
    read=read,
    write=write,
)
