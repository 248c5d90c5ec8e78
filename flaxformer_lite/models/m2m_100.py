"""M2M100 and NLLB: pre-norm encoder-decoders for translation, with fairseq's sinusoids.

Reference: Fan et al., "Beyond English-Centric Multilingual Machine Translation" (2021), section 4;
NLLB team, "No Language Left Behind" (2022), section 6.
"""

import dataclasses
from functools import partial

import jax.numpy as jnp

from flaxformer_lite.models import bart
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal

PAD_ID = 1
POSITION = Sinusoidal(layout="halves", inclusive=True, offset=PAD_ID + 1, zero_at=PAD_ID)
BASE = bart_like.BASE | dict(
    vocab_size=128112,
    position=POSITION,
    norm_at=("in", "final"),
    bias_at=("query", "key", "value", "out", "mlp"),
    activation="relu",
    embed_power=0.5,
    pad_token_id=PAD_ID,
)
LARGE = dict(d_model=1024, num_heads=16, mlp_dim=8192, encoder_layers=24, decoder_layers=24)
PRESETS = {
    "tiny": bart_like.PRESETS["tiny"],
    "418m": bart_like.PRESETS["large"],
    "1.2b": LARGE,
    "nllb_600m": bart_like.PRESETS["large"] | dict(vocab_size=256206),
    "nllb_1.3b": LARGE | dict(vocab_size=256206),
    "nllb_3.3b": LARGE | dict(vocab_size=256206, d_model=2048),
}
config = partial(build_config, "m2m_100", BASE, PRESETS, "418m")


class Model(EncoderDecoderModel):
    """M2M100; positions of the source count the tokens that are not padding."""

    heads = ("lm", "none")
    frozen_padding = ("tokens",)

    def positions(self, input_ids, position_ids, attention_mask, segment_ids):
        pad = self.cfg.pad_token_id
        if pad is None or position_ids is not None or segment_ids is not None:
            return super().positions(input_ids, position_ids, attention_mask, segment_ids)
        real_BS = (input_ids != pad).astype(jnp.int32)
        return jnp.cumsum(real_BS, axis=1) * real_BS - 1


def read(fields: Fields) -> ModelFields:
    pad = fields.get("pad_token_id", PAD_ID)
    position = dataclasses.replace(POSITION, offset=pad + 1, zero_at=pad)
    return bart_like.read(fields, scaled=True) | {"position": position}


PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    model_type="m2m_100",
    defaults=dict(decoder_start_token_id=2),
    heads=bart_like.heads("M2M100"),
    read=read,
    optional=(),
    ignored=(*bart.PUBLISHED.ignored, r"(encoder|decoder)\.embed_positions\.weights"),
    relatives={},
)
