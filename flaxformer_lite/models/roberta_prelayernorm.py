"""RoBERTa with norms before attention and feed-forward, as fairseq trains large encoders.

Reference: Ott et al., "fairseq: A Fast, Extensible Toolkit for Sequence Modeling" (2019); Wettig
et al., "Should You Mask 15% in Masked Language Modeling?" (2023), whose models have this form.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import bert, roberta
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import (
    heads,
    outside_layers,
    rows,
    within,
)

BASE = roberta.BASE | dict(norm_at=("embed", "in", "final"))
PRESETS = roberta.PRESETS
config = partial(build, "roberta_prelayernorm", BASE, PRESETS, "base")
Model = roberta.Model
POST_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
LAYER = rows(
    *[row for row in bert.LAYER if row.name not in POST_NORMS],
    ("attention.LayerNorm", "attention_in_norm"),
    ("intermediate.LayerNorm", "mlp_in_norm"),
)
ENDS = outside_layers(bert.BODY)
BODY = (
    *ENDS,
    *rows(("LayerNorm", "encoder/final_norm")),
    *within("encoder.layer.{i}", "encoder/layer_{i}", LAYER),
)
PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="roberta-prelayernorm",
    prefix="roberta_prelayernorm.",
    names=lambda cfg: BODY,
    heads=heads("RobertaPreLayerNorm", **roberta.HEADS),
)
