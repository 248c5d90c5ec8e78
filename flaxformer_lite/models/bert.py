"""BERT: a post-norm encoder with learned positions and token types.

Reference: Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers" (2019).
"""

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models._encoder import EncoderModel as Model
from flaxformer_lite.models._presets import build
from flaxformer_lite.positions.learned import Learned

__all__ = ["PRESETS", "Model", "config"]

BASE = dict(
    vocab_size=30522, max_length=512, type_vocab_size=2, position=Learned(), norm_eps=1e-12, norm_at=("embed", "out"),
    bias_at=("query", "key", "value", "out", "mlp", "logits"), dropout=0.1, head="pretraining",
)  # fmt: skip
PRESETS = {
    "tiny": dict(d_model=128, num_heads=2, mlp_dim=512, encoder_layers=2),
    "mini": dict(d_model=256, num_heads=4, mlp_dim=1024, encoder_layers=4),
    "base": dict(d_model=768, num_heads=12, mlp_dim=3072, encoder_layers=12),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=24),
}


def config(preset: str = "base", **overrides) -> ModelConfig:
    """BERT's sizes (section 3; `tiny` and `mini` are Turc et al. 2019's), any field of which may be overridden."""
    return build("bert", BASE, PRESETS, preset, overrides)
