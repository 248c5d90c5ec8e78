"""Blenderbot-small's decoder alone, as a language model, which does not scale token vectors."""

import dataclasses
from functools import partial

from flaxformer_lite.models import blenderbot_decoder
from flaxformer_lite.models.common import bart_decoder_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import Fields, ModelFields, build_heads

BASE = blenderbot_decoder.BASE | dict(vocab_size=54944, max_length=512, norm_at=("embed", "out"))
PRESETS = {
    "tiny": bart_decoder_like.PRESETS["tiny"],
    "90m": dict(d_model=512, num_heads=16, mlp_dim=2048, decoder_layers=8),
}
config = partial(build, "blenderbot_small_decoder", BASE, PRESETS, "90m")


class Model(bart_decoder_like.Model):
    norms_tokens_first = True


def read(fields: Fields) -> ModelFields:
    fields.get("scale_embedding", False)  # a norm follows, and transformers leaves the scale out
    return {}


PUBLISHED = dataclasses.replace(
    blenderbot_decoder.PUBLISHED,
    model_type="blenderbot-small",
    defaults=dict(vocab_size=50265),
    heads=build_heads("BlenderbotSmall", lm=bart_decoder_like.LM_HEAD),
    read=read,
)
