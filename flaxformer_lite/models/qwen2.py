"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.

Reference: Yang et al., "Qwen2 Technical Report" (2024), section 2.2.
"""

from functools import partial

from flaxformer_lite.models.common import llama_like, qwen_like
from flaxformer_lite.models.presets import build_config

BASE = qwen_like.BASE
PRESETS = {  # table 1
    "tiny": llama_like.TINY,
    "0.5b": dict(
        d_model=896,
        num_heads=14,
        num_kv_heads=2,
        mlp_dim=4864,
        decoder_layers=24,
        tie_embeddings=True,
        max_length=131072,
    ),
    "7b": dict(
        d_model=3584,
        num_heads=28,
        num_kv_heads=4,
        mlp_dim=18944,
        decoder_layers=28,
        vocab_size=152064,
    ),
}
config = partial(build_config, "qwen2", BASE, PRESETS, "7b")
Model = llama_like.Model


PUBLISHED = llama_like.published(
    "qwen2",
    defaults=dict(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=22016,
        num_hidden_layers=32,
        num_attention_heads=32,
    ),
    heads=llama_like.heads("Qwen2"),
    harmless=("use_mrope",),
    read=lambda fields: qwen_like.read_attention(fields, kv_heads=32),
    write=qwen_like.write_attention,
)
