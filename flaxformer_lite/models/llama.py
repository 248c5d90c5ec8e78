"""Llama: a pre-norm decoder with RMS norms, gated SiLU, rotary positions and grouped-query attention.

Reference: Touvron et al., "LLaMA" (2023), section 2.2; "Llama 2" (2023), section 2.2; Grattafiori et al., "The Llama 3
Herd of Models" (2024), section 3.2.
"""

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models._decoder import DecoderModel as Model
from flaxformer_lite.models._presets import build
from flaxformer_lite.positions.rope import Rope

__all__ = ["PRESETS", "Model", "config"]

BASE = dict(
    vocab_size=32000, max_length=2048, position=Rope(), norm="rms", norm_eps=1e-5, norm_at=("in", "final"),
    activation="silu", mlp="gated", tie_embeddings=False,
)  # fmt: skip
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, num_kv_heads=2, mlp_dim=344, decoder_layers=4),
    "1b": dict(d_model=2048, num_heads=32, num_kv_heads=4, mlp_dim=5632, decoder_layers=22),  # TinyLlama's shape
    "7b": dict(d_model=4096, num_heads=32, mlp_dim=11008, decoder_layers=32),
    "llama2_70b": dict(d_model=8192, num_heads=64, num_kv_heads=8, mlp_dim=28672, decoder_layers=80, max_length=4096),
    "llama3_8b": dict(
        d_model=4096, num_heads=32, num_kv_heads=8, mlp_dim=14336, decoder_layers=32, vocab_size=128256, max_length=8192,
        position=Rope(base=500000.0),
    ),
}  # fmt: skip


def config(preset: str = "7b", **overrides) -> ModelConfig:
    """The published sizes, any field of which may be overridden."""
    return build("llama", BASE, PRESETS, preset, overrides)
