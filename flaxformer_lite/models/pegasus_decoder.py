"""Pegasus' decoder alone, as a language model."""

import dataclasses
from functools import partial

from flaxformer_lite.models import bart_decoder, pegasus
from flaxformer_lite.models.common import bart_decoder_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import build_heads
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal

BASE = bart_decoder_like.BASE | dict(
    vocab_size=96103,
    position=Sinusoidal(layout="halves"),
    norm_at=("in", "final"),
    activation="relu",
    embed_power=0.5,
    pad_token_id=0,
    eos_token_id=None,
)
PRESETS = {
    "tiny": bart_decoder_like.PRESETS["tiny"],
    "large": bart_decoder_like.PRESETS["large"] | dict(decoder_layers=16),
}
config = partial(build, "pegasus_decoder", BASE, PRESETS, "large")
Model = bart_decoder_like.Model


PUBLISHED = dataclasses.replace(
    bart_decoder.PUBLISHED,
    model_type="pegasus",
    defaults=pegasus.PUBLISHED.defaults,
    heads=build_heads("Pegasus", lm=bart_decoder_like.LM_HEAD),
    derived=bart_decoder_like.cross_attention_and_positions,
)
