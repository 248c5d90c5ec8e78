"""PLBART: BART for programs and their descriptions, with scaled token vectors.

Reference: Ahmad et al., "Unified Pre-training for Program Understanding and Generation" (2021),
section 2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import bart, mbart
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.presets import build_config

BASE = bart_like.BASE | dict(vocab_size=50005, embed_power=0.5, decoder_start_token_id=None)
PRESETS = {"tiny": bart_like.PRESETS["tiny"], "base": bart_like.PRESETS["base"]}
config = partial(build_config, "plbart", BASE, PRESETS, "base")
Model = mbart.Model
PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    model_type="plbart",
    heads=bart_like.heads("PLBart", sequence_classification=bart_like.CLASSIFIER),
    read=lambda fields: (
        bart_like.read(fields, heads=12, mlp_dim=3072, scaled=True) | {"num_labels": 2}
    ),
    relatives={"PLBartForCausalLM": "plbart_decoder"},
)
