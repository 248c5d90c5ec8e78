"""Blenderbot's decoder alone, as a language model."""

import dataclasses
from functools import partial

from flaxformer_lite.models import bart_decoder
from flaxformer_lite.models.common import bart_decoder_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import build_heads
from flaxformer_lite.nn.positions.learned import Learned

BASE = bart_decoder_like.BASE | dict(
    vocab_size=8008, max_length=128, position=Learned(), norm_at=("in", "final"), pad_token_id=0
)
PRESETS = {
    "tiny": bart_decoder_like.PRESETS["tiny"],
    "3b": dict(d_model=2560, num_heads=32, mlp_dim=10240, decoder_layers=24),
}
config = partial(build, "blenderbot_decoder", BASE, PRESETS, "3b")
Model = bart_decoder_like.Model
PUBLISHED = dataclasses.replace(
    bart_decoder.PUBLISHED,
    model_type="blenderbot",
    heads=build_heads("Blenderbot", lm=bart_decoder_like.LM_HEAD),
)
