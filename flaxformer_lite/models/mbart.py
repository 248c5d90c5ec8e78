"""mBART: BART for many languages, pre-norm, with a norm at the end of each stack.

Reference: Liu et al., "Multilingual Denoising Pre-training for Neural Machine Translation" (2020),
section 2.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from flaxformer_lite.models import bart
from flaxformer_lite.models.common import bart_like, bert_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.inputs import last_token

BASE = bart_like.BASE | dict(
    vocab_size=250027,
    norm_at=("embed", "in", "final"),
    activation="relu",
    embed_power=0.5,
    decoder_start_token_id=None,
)
PRESETS = {"tiny": bart_like.PRESETS["tiny"], "large": bart_like.PRESETS["large"]}
config = partial(build_config, "mbart", BASE, PRESETS, "large")


class Model(bart_like.Model):
    """mBART, where shifting right moves the last token of the text, its language, to the front.

    A language model needs decoder_start_token_id instead: it writes a text whose last token is not
    known yet, and the targets of our objectives end without their language.
    """

    starts_with_language = True

    def shift_right(self, input_ids) -> jax.Array:
        last_B1 = last_token(input_ids, self.cfg.pad_token_id)[:, None]
        return jnp.concatenate(
            [jnp.take_along_axis(input_ids, last_B1, axis=1), input_ids[:, :-1]], axis=1
        )


PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    model_type="mbart",
    defaults=dict(vocab_size=50265, activation_function="gelu"),
    heads=bart_like.heads(
        "MBart", sequence_classification=bart_like.CLASSIFIER, question_answering=bert_like.SPANS
    ),
    read=lambda fields: bart_like.read(fields) | {"num_labels": 2},
    relatives={"MBartForCausalLM": "mbart_decoder"},
)
