"""data2vec for text: RoBERTa's architecture, pretrained by predicting a teacher's hidden states.

Reference: Baevski et al., "data2vec: A General Framework for Self-supervised Learning in Speech,
Vision and Language" (2022), section 4.4.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import roberta
from flaxformer_lite.models.common import roberta_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import build_heads

BASE = roberta_like.BASE
PRESETS = roberta_like.PRESETS
config = partial(build, "data2vec_text", BASE, PRESETS, "base")
Model = roberta_like.Model
PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="data2vec-text",
    prefix="data2vec_text.",
    defaults={**roberta.PUBLISHED.defaults, "vocab_size": 30522},
    heads=build_heads("Data2VecText", **roberta_like.HEADS),
)
