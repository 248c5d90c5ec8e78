"""Bidirectional recurrent encoders for texts and their words.

They have embeddings, layers that read both ways, and a head.

Reference: Graves and Schmidhuber, "Framewise Phoneme Classification with Bidirectional LSTM"
(2005); Huang et al., "Bidirectional LSTM-CRF Models for Sequence Tagging" (2015), without the CRF.
"""

from functools import partial

import jax
import jax.numpy as jnp

from flaxformer_lite.contrib.recurrent.mixers.lstm import LstmConfig
from flaxformer_lite.contrib.recurrent.models.recurrent import STACK
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel

BASE = dict(vocab_size=30522, mixer=LstmConfig(), **STACK)
PRESETS = {
    "tiny": dict(d_model=128, mlp_dim=512, encoder_layers=2),
    "base": dict(d_model=512, mlp_dim=2048, encoder_layers=2, dropout=0.5),
}
config = partial(build_config, "recurrent_encoder", BASE, PRESETS, "base")


class Model(EncoderModel):
    """An encoder that summarizes a sequence by the last states of both directions.

    That is the forward half of its last token's vector and the backward half of its first token's,
    each of which has read the whole sequence.
    """

    heads = (
        "masked_lm",
        "none",
        "sequence_classification",
        "token_classification",
        "question_answering",
        "multiple_choice",
    )
    pooled = ("sequence_classification", "multiple_choice")

    def summarise(self, x_BTD: jax.Array, attention_mask_BT: jax.Array | None) -> jax.Array:
        batch, length, width = x_BTD.shape
        keep_BT = jnp.ones((batch, length), bool)
        if attention_mask_BT is not None:
            keep_BT = jnp.asarray(attention_mask_BT) != 0
        first_B = jnp.argmax(keep_BT, axis=1)
        last_B = length - 1 - jnp.argmax(keep_BT[:, ::-1], axis=1)
        forward = jnp.take_along_axis(x_BTD, last_B[:, None, None], axis=1)
        backward = jnp.take_along_axis(x_BTD, first_B[:, None, None], axis=1)
        return self.pooler(
            jnp.concatenate([forward[..., : width // 2], backward[..., width // 2 :]], axis=-1)
        )
