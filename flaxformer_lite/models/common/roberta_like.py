"""Values, names of weights and fields, and heads that RoBERTa shares with families like it."""

import jax.numpy as jnp

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import weight_rows
from flaxformer_lite.nn.functions.embedding import positions_in_segments

BASE = bert_like.BASE | dict(
    vocab_size=50265,
    max_length=514,
    type_vocab_size=1,
    norm_eps=1e-5,
    pad_token_id=1,
    head="masked_lm",
)
PRESETS = bert_like.PRESETS


class Model(EncoderModel):
    """RoBERTa.

    Positions start after row `pad_token_id` of their table, and position_ids are rows of that
    table.
    """

    heads = ("none", "masked_lm", "causal_lm", *bert_like.CLASSIFIERS)
    masked_lm_activation = "gelu"
    frozen_padding = ("tokens", "positions")

    def positions(self, input_ids, position_ids, attention_mask, segment_ids):
        if position_ids is not None:
            return super().positions(input_ids, position_ids, attention_mask, segment_ids)
        pad = self.cfg.pad_token_id
        if pad is None:
            raise ConfigError(
                "pad_token_id=None: RoBERTa's positions count from it; set it, or pass"
                " position_ids."
            )
        if segment_ids is not None:
            return positions_in_segments(segment_ids) + (pad + 1)
        real_BT = (input_ids != pad).astype(jnp.int32)
        return pad + jnp.cumsum(real_BT, axis=1) * real_BT


LM_HEAD = weight_rows(
    ("lm_head.dense", "masked_lm/dense"),
    ("lm_head.layer_norm", "masked_lm/norm"),
    ("lm_head.decoder.weight", "masked_lm/vocab/kernel"),
    ("lm_head.bias", "masked_lm/vocab/bias"),
)
FIRST_TOKEN = weight_rows(
    ("classifier.dense", "pooler/dense"), ("classifier.out_proj", "classifier/dense")
)
POOLED = dict(sequence_classification=FIRST_TOKEN)
HEADS = dict(none=(), masked_lm=LM_HEAD, causal_lm=LM_HEAD, **bert_like.CLASSIFIERS | POOLED)
