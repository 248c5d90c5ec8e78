"""EmbeddingGemma: Gemma 3 that sees both ways, an encoder of sentences.

Reference: Schechter Vera et al., "EmbeddingGemma: Powerful and Lightweight Text Representations"
(2025), section 2.
"""

from functools import partial

from flaxformer_lite.models import gemma3_text
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.nn.positions.rope import Rope

BASE = gemma3_text.BASE | dict(
    vocab_size=262144,
    max_length=2048,
    position=Rope(base=1000000.0),
    pattern=gemma3_text.pattern(*[257] * 5, 0),
    head="none",
)
PRESETS = {
    "tiny": dict(
        d_model=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=48,
        mlp_dim=344,
        encoder_layers=4,
        pattern=gemma3_text.pattern(33, 0),
    ),
    "300m": dict(d_model=768, num_heads=3, num_kv_heads=1, mlp_dim=1152, encoder_layers=24),
}
config = partial(build_config, "embedding_gemma", BASE, PRESETS, "300m")


class Model(EncoderModel):
    heads = ("none",)
    pooled = ()


PUBLISHED = gemma3_text.PUBLISHED
