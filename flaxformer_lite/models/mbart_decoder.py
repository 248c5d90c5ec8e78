"""mBART's decoder alone, as a language model."""

import dataclasses
from functools import partial

from flaxformer_lite.models import bart_decoder, mbart
from flaxformer_lite.models.common import bart_decoder_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import build_heads

BASE = bart_decoder_like.BASE | dict(
    vocab_size=250027,
    norm_at=("embed", "in", "final"),
    activation="relu",
    embed_power=0.5,
)
PRESETS = {"tiny": bart_decoder_like.PRESETS["tiny"], "large": bart_decoder_like.PRESETS["large"]}
config = partial(build, "mbart_decoder", BASE, PRESETS, "large")
Model = bart_decoder_like.Model
PUBLISHED = dataclasses.replace(
    bart_decoder.PUBLISHED,
    model_type="mbart",
    defaults=mbart.PUBLISHED.defaults,
    heads=build_heads("MBart", lm=bart_decoder_like.LM_HEAD),
)
