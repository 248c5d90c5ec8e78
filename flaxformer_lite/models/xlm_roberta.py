"""XLM-R: RoBERTa for a hundred languages; the architecture is the same.

Reference: Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale" (2020), section 3.
"""

import dataclasses

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models import roberta
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.roberta import Model

__all__ = ["PRESETS", "PUBLISHED", "Model", "config"]

BASE = roberta.BASE | dict(vocab_size=250002)
PRESETS = roberta.PRESETS


def config(preset: str = "base", **overrides) -> ModelConfig:
    """Builds a config with XLM-R's sizes (appendix B); keyword arguments override its fields."""
    return build("xlm_roberta", BASE, PRESETS, preset, overrides)


# The prefix of its tensors is RoBERTa's.
PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="xlm-roberta",
    defaults={**roberta.PUBLISHED.defaults, "vocab_size": 30522},
    heads=roberta.heads("XLMRoberta"),
)
