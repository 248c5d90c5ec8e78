"""Qwen3: Llama with a norm on each head's queries and keys.

Heads are wider than d_model / num_heads.

Reference: Yang et al., "Qwen3 Technical Report" (2025), section 2.
"""

from functools import partial

from flaxformer_lite.models.common import llama_like, qwen_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config

BASE = qwen_like.BASE | dict(bias_at=(), qk_norm="rms", head_dim=128, max_length=40960)
PRESETS = {  # table 1
    "tiny": llama_like.TINY | dict(head_dim=48),
    "0.6b": dict(
        d_model=1024,
        num_heads=16,
        num_kv_heads=8,
        mlp_dim=3072,
        decoder_layers=28,
        tie_embeddings=True,
    ),
    "8b": dict(d_model=4096, num_heads=32, num_kv_heads=8, mlp_dim=12288, decoder_layers=36),
}
config = partial(build_config, "qwen3", BASE, PRESETS, "8b")
Model = llama_like.Model
BODY = llama_like.decoder_body(llama_like.LAYER + llama_like.QK_NORMS)


def read(fields: Fields) -> ModelFields:
    biased = llama_like.attention_biases(fields)
    return qwen_like.read_attention(fields, kv_heads=32, head_dim=128) | {"bias_at": biased}


PUBLISHED = llama_like.published(
    "qwen3",
    BODY,
    defaults=dict(intermediate_size=22016, num_hidden_layers=32, max_position_embeddings=32768),
    heads=llama_like.heads("Qwen3"),
    read=read,
    write=lambda cfg: qwen_like.write_attention(cfg) | {"attention_bias": "query" in cfg.bias_at},
)
