"""Blenderbot: a pre-norm BART for dialogue, without a norm after the embeddings.

Reference: Roller et al., "Recipes for building an open-domain chatbot" (2021), section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import bart
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.learned import Learned

BASE = bart_like.BASE | dict(
    vocab_size=8008,
    max_length=128,
    position=Learned(),
    norm_at=("in", "final"),
    pad_token_id=0,
    decoder_start_token_id=1,
)
PRESETS = {
    "tiny": bart_like.PRESETS["tiny"],
    "3b": dict(d_model=2560, num_heads=32, mlp_dim=10240, encoder_layers=2, decoder_layers=24),
}
config = partial(build_config, "blenderbot", BASE, PRESETS, "3b")
Model = bart_like.Model
PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    model_type="blenderbot",
    heads=bart_like.heads("Blenderbot"),
    read=lambda fields: bart_like.read(fields, heads=32, mlp_dim=10240),
    relatives={"BlenderbotForCausalLM": "blenderbot_decoder"},
)
