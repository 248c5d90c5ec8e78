"""T5 1.0 and 1.1: a pre-norm encoder-decoder with bucketed relative positions, no biases and unscaled logits.

Reference: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020),
section 2.1; for 1.1 (gated GELU, untied logits, no dropout in pretraining) Shazeer, "GLU Variants" (2020).
"""

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models._encoder_decoder import EncoderDecoderModel as Model
from flaxformer_lite.models._presets import build
from flaxformer_lite.positions.t5_buckets import T5Buckets

__all__ = ["PRESETS", "Model", "config"]

BASE = dict(
    vocab_size=32128, max_length=512, position=T5Buckets(), norm="rms", norm_at=("in", "final"), activation="relu",
    attention_scale=1.0, logit_power=-0.5, dropout=0.1, dropout_at=("embed", "attention", "mlp", "branch", "final"), init="fan_in",
)  # fmt: skip
V1_1 = dict(activation="gelu_tanh", mlp="gated", tie_embeddings=False, logit_power=0.0, dropout=0.0)


def _sizes(d_model: int, num_heads: int, head_dim: int, mlp_dim: int, layers: int) -> dict:
    return dict(
        d_model=d_model, num_heads=num_heads, head_dim=head_dim, mlp_dim=mlp_dim, encoder_layers=layers, decoder_layers=layers
    )


PRESETS = {
    "tiny": _sizes(128, 4, 32, 512, 2),
    "small": _sizes(512, 8, 64, 2048, 6),
    "base": _sizes(768, 12, 64, 3072, 12),
    "large": _sizes(1024, 16, 64, 4096, 24),
    "3b": _sizes(1024, 32, 128, 16384, 24),
    "11b": _sizes(1024, 128, 128, 65536, 24),
} | {
    f"v1_1_{name}": dict(sizes, **V1_1)
    for name, sizes in {
        "tiny": _sizes(128, 4, 32, 256, 2),
        "small": _sizes(512, 6, 64, 1024, 8),
        "base": _sizes(768, 12, 64, 2048, 12),
        "large": _sizes(1024, 16, 64, 2816, 24),
        "xl": _sizes(2048, 32, 64, 5120, 24),
        "xxl": _sizes(4096, 64, 64, 10240, 24),
    }.items()
}


def config(preset: str = "small", **overrides) -> ModelConfig:
    """T5's published sizes, any field of which may be overridden."""
    return build("t5", BASE, PRESETS, preset, overrides)
