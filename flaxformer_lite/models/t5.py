"""T5 1.0 and 1.1: a pre-norm encoder-decoder with bucketed relative positions.

It has no biases, and attention logits are not scaled.

Reference: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer" (2020), section 2.1; for 1.1 (gated GELU, untied logits, no dropout in pretraining)
Shazeer, "GLU Variants" (2020).
"""

from functools import partial

from flaxformer_lite.models.common import t5_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Published

BASE = t5_like.BASE
PRESETS = t5_like.PRESETS
Model = t5_like.Model


config = partial(build_config, "t5", t5_like.BASE, t5_like.PRESETS, "small")


PUBLISHED = Published(
    model_type="t5",
    names=t5_like.names,
    heads=t5_like.heads("T5"),
    fields=t5_like.FIELDS,
    read=t5_like.read,
    write=t5_like.write,
    fixed=t5_like.FIXED,
    harmless=t5_like.HARMLESS,
    duplicates=t5_like.DUPLICATES,
    ignored=t5_like.UNUSED,
)
