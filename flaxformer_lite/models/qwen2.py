"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.

Reference: Yang et al., "Qwen2 Technical Report" (2024), section 2.2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import (
    Fields,
    ModelFields,
    Published,
    layer_types,
    read_windows,
)
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=151936,
    max_length=32768,
    norm_eps=1e-6,
    bias_at=("query", "key", "value"),
    position=Rope(base=1000000.0),
)
PRESETS = {  # table 1
    "tiny": dict(d_model=128, num_heads=4, num_kv_heads=2, mlp_dim=344, decoder_layers=4),
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
config = partial(build, "qwen2", BASE, PRESETS, "7b")
Model = llama_like.Model


def read_attention(fields: Fields, kv_heads: int, head_dim: int = 0) -> ModelFields:
    """Reads heads and windows: if windows are on, the layers from `max_window_layers` on slide."""
    layers = fields.get("num_hidden_layers", 32)
    first = fields.get("max_window_layers", 28)
    window = fields.nullable("sliding_window", 4096)
    on = fields.get("use_sliding_window", False)
    windows = read_windows(fields, layers, lambda i: on and i >= first, window if on else 0)
    return llama_like.read_heads(fields, kv_heads, head_dim) | {"windows": windows}


def write_attention(cfg: ModelConfig) -> Json:
    fields = llama_like.write_heads(cfg) | {"use_sliding_window": any(cfg.windows)}
    if any(cfg.windows):
        fields["sliding_window"] = max(cfg.windows)
        fields["layer_types"] = layer_types(cfg)
    return fields


PUBLISHED = Published(
    model_type="qwen2",
    defaults=dict(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=22016,
        num_hidden_layers=32,
        num_attention_heads=32,
    ),
    prefix="model.",
    names=lambda cfg: llama_like.BODY,
    heads=llama_like.heads("Qwen2"),
    fields=llama_like.FIELDS,
    harmless=("use_mrope",),
    read=lambda fields: read_attention(fields, kv_heads=32),
    write=write_attention,
    ignored=llama_like.BUFFERS,
)
