"""mBART: BART for many languages, pre-norm, with a norm at the end of each stack.

Reference: Liu et al., "Multilingual Denoising Pre-training for Neural Machine Translation" (2020), section 2.
"""

import dataclasses

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models import bart
from flaxformer_lite.models._encoder_decoder import EncoderDecoderModel as Model
from flaxformer_lite.models._presets import build
from flaxformer_lite.models._published import Head

__all__ = ["PRESETS", "PUBLISHED", "Model", "config"]

BASE = bart.BASE | dict(vocab_size=250027, norm_at=("embed", "in", "final"), activation="relu", embed_power=0.5)
PRESETS = {"tiny": bart.PRESETS["tiny"], "large": bart.PRESETS["large"]}


def config(preset: str = "large", **overrides) -> ModelConfig:
    """mBART's size, any field of which may be overridden."""
    return build("mbart", BASE, PRESETS, preset, overrides)


PUBLISHED = dataclasses.replace(
    bart.PUBLISHED, model_type="mbart", heads={"lm": Head("MBartForConditionalGeneration", bart.LM_HEAD)}
)
