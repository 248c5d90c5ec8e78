"""PLBART's decoder alone, as a language model."""

import dataclasses
from functools import partial

from flaxformer_lite.models import bart_decoder
from flaxformer_lite.models.common import bart_decoder_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import build_heads

BASE = bart_decoder_like.BASE | dict(vocab_size=50005, embed_power=0.5)
PRESETS = {name: bart_decoder_like.PRESETS[name] for name in ("tiny", "base")}
config = partial(build, "plbart_decoder", BASE, PRESETS, "base")
Model = bart_decoder_like.Model
PUBLISHED = dataclasses.replace(
    bart_decoder.PUBLISHED,
    model_type="plbart",
    heads=build_heads("PLBart", lm=bart_decoder_like.LM_HEAD),
    read=partial(bart_decoder_like.read, scaled=True),
)
