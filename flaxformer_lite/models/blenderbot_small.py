"""Blenderbot-small: a post-norm BART whose decoder normalizes tokens before adding positions.

Reference: Roller et al., "Recipes for building an open-domain chatbot" (2021), section 2, in the
90M form that came before its larger models.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import blenderbot
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.learned import Learned

BASE = blenderbot.BASE | dict(
    vocab_size=54944, max_length=512, position=Learned(), norm_at=("embed", "out"), embed_power=0.5
)
PRESETS = {
    "tiny": bart_like.PRESETS["tiny"],
    "90m": dict(d_model=512, num_heads=16, mlp_dim=2048, encoder_layers=8, decoder_layers=8),
}
config = partial(build_config, "blenderbot_small", BASE, PRESETS, "90m")


class Model(bart_like.Model):
    norms_tokens_first = True


PUBLISHED = dataclasses.replace(
    blenderbot.PUBLISHED,
    model_type="blenderbot-small",
    defaults=dict(vocab_size=50265),
    heads=bart_like.heads("BlenderbotSmall"),
    read=lambda fields: bart_like.read(fields, heads=16, mlp_dim=2048),
    relatives={"BlenderbotSmallForCausalLM": "blenderbot_small_decoder"},
)
