"""XLM-R: RoBERTa for a hundred languages; the architecture is the same.

Reference: Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale" (2020),
section 3.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import roberta
from flaxformer_lite.models.common import roberta_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import build_heads

BASE = roberta_like.BASE | dict(vocab_size=250002)
PRESETS = roberta_like.PRESETS
config = partial(build, "xlm_roberta", BASE, PRESETS, "base")
Model = roberta_like.Model


# The prefix of its tensors is RoBERTa's.
PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="xlm-roberta",
    defaults={**roberta.PUBLISHED.defaults, "vocab_size": 30522},
    heads=build_heads("XLMRoberta", **roberta_like.HEADS),
)
