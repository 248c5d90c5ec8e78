"""GPT-2: a pre-norm decoder with learned positions and tied logits.

Reference: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3.
"""

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models._decoder import DecoderModel as Model
from flaxformer_lite.models._presets import build
from flaxformer_lite.positions.learned import Learned

__all__ = ["PRESETS", "Model", "config"]

BASE = dict(
    vocab_size=50257, max_length=1024, position=Learned(), norm_eps=1e-5, norm_at=("in", "final"), activation="gelu_tanh",
    bias_at=("query", "key", "value", "out", "mlp"), dropout=0.1, init="normal_residual",
)  # fmt: skip
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=4),
    "small": dict(d_model=768, num_heads=12, mlp_dim=3072, decoder_layers=12),
    "medium": dict(d_model=1024, num_heads=16, mlp_dim=4096, decoder_layers=24),
    "large": dict(d_model=1280, num_heads=20, mlp_dim=5120, decoder_layers=36),
    "xl": dict(d_model=1600, num_heads=25, mlp_dim=6400, decoder_layers=48),
}


def config(preset: str = "small", **overrides) -> ModelConfig:
    """GPT-2's sizes (table 2), any field of which may be overridden."""
    return build("gpt2", BASE, PRESETS, preset, overrides)
