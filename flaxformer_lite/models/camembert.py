"""CamemBERT: RoBERTa for French; the architecture is the same.

Reference: Martin et al., "CamemBERT: a Tasty French Language Model" (2020), section 4.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import roberta
from flaxformer_lite.models.common import roberta_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import build_heads

BASE = roberta_like.BASE | dict(vocab_size=32005)
PRESETS = roberta_like.PRESETS
config = partial(build, "camembert", BASE, PRESETS, "base")
Model = roberta_like.Model


# The prefix of its tensors is RoBERTa's.
PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="camembert",
    defaults={**roberta.PUBLISHED.defaults, "vocab_size": 30522},
    heads=build_heads("Camembert", **roberta_like.HEADS),
)
