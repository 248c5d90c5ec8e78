"""Recurrent language models: embeddings, layers of RNNs, LSTMs or GRUs, and logits.

They have neither positions nor feed-forwards.

Reference: Zaremba et al., "Recurrent Neural Network Regularization" (2014), section 4.1: `medium`
and `large`, on words of the Penn Treebank (arXiv:1409.2329). Mikolov et al. (2010) for language
models with a simple RNN.
"""

from functools import partial

from flaxformer_lite.contrib.recurrent.mixers.lstm import LstmConfig
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel

# residual=sequential with norm_at=("in", "final") makes deeper stacks of it.
STACK = dict(
    num_heads=1,
    mlp="none",
    residual="none",
    norm_at=(),
    init="xavier",
    dropout_at=("embed", "branch"),
)
BASE = dict(
    vocab_size=10000, mixer=LstmConfig(), bias_at=("logits",), tie_embeddings=False, **STACK
)
PRESETS = {
    "tiny": dict(d_model=128, mlp_dim=512, decoder_layers=2, tie_embeddings=True),
    "small": dict(d_model=200, mlp_dim=800, decoder_layers=2),
    "medium": dict(d_model=650, mlp_dim=2600, decoder_layers=2, dropout=0.5),
    "large": dict(d_model=1500, mlp_dim=6000, decoder_layers=2, dropout=0.65),
}
config = partial(build_config, "recurrent", BASE, PRESETS, "medium")
Model = DecoderModel
