"""The original Transformer: a post-norm encoder-decoder with sinusoidal positions and one table for all embeddings.

Reference: Vaswani et al., "Attention Is All You Need" (2017), section 3 and table 3.
"""

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel as Model
from flaxformer_lite.positions.sinusoidal import Sinusoidal

__all__ = ["PRESETS", "Model", "config"]

BASE = dict(
    vocab_size=37000, max_length=512, position=Sinusoidal(), norm_at=("out",), bias_at=("mlp",), activation="relu",
    embed_power=0.5, init="xavier", dropout=0.1, dropout_at=("embed", "branch"),
)  # fmt: skip
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, encoder_layers=2, decoder_layers=2),
    "base": dict(d_model=512, num_heads=8, mlp_dim=2048, encoder_layers=6, decoder_layers=6),
    "big": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=6, decoder_layers=6, dropout=0.3),
}


def config(preset: str = "base", **overrides) -> ModelConfig:
    """Builds a config with the paper's sizes (table 3); keyword arguments override its fields."""
    return build("transformer", BASE, PRESETS, preset, overrides)
