"""Recurrent encoder-decoders with attention.

The encoder reads both ways, and the decoder's state attends to it.

`tiny` is wired as in Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and
Translate" (2015): a GRU, and additive scores of the state before (arXiv:1409.0473). `tiny_luong` as
in Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015): an
LSTM, and multiplicative scores of the state after (arXiv:1508.04025).
"""

from functools import partial

from flaxformer_lite.contrib.recurrent.mixers.gru import GruConfig
from flaxformer_lite.contrib.recurrent.mixers.lstm import LstmConfig
from flaxformer_lite.contrib.recurrent.mixers.recurrent_attention import RecurrentAttentionConfig
from flaxformer_lite.contrib.recurrent.models.recurrent import STACK
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel

BASE = dict(vocab_size=30000, mixer=GruConfig(), decoder_mixer=RecurrentAttentionConfig(), **STACK)
LUONG = dict(
    mixer=LstmConfig(),
    decoder_mixer=RecurrentAttentionConfig(cell="lstm", score="multiplicative", query="current"),
)
SIZES = dict(d_model=128, mlp_dim=512, encoder_layers=1, decoder_layers=1)
PRESETS = {"tiny": SIZES, "tiny_luong": SIZES | LUONG}
config = partial(build_config, "seq2seq_recurrent", BASE, PRESETS, "tiny")


class Model(EncoderDecoderModel):
    """An encoder-decoder whose decoder cannot be left out."""

    heads = ("lm", "none")
