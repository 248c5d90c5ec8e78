"""The original Transformer: a post-norm encoder-decoder with sinusoidal positions.

All embeddings share one table.

Reference: Vaswani et al., "Attention Is All You Need" (2017), section 3 and table 3.
"""

from functools import partial

from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal

BASE = dict(
    vocab_size=37000,
    max_length=512,
    position=Sinusoidal(),
    norm_at=("out",),
    bias_at=("mlp",),
    activation="relu",
    embed_power=0.5,
    init="xavier",
    dropout=0.1,
    dropout_at=("embed", "branch"),
)
PRESETS = {  # table 3
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, encoder_layers=2, decoder_layers=2),
    "base": dict(d_model=512, num_heads=8, mlp_dim=2048, encoder_layers=6, decoder_layers=6),
    "big": dict(
        d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=6, decoder_layers=6, dropout=0.3
    ),
}
config = partial(build_config, "transformer", BASE, PRESETS, "base")
Model = EncoderDecoderModel
