"""RoBERTa with norms before attention and feed-forward, as fairseq trains large encoders.

Reference: Ott et al., "fairseq: A Fast, Extensible Toolkit for Sequence Modeling" (2019); Wettig
et al., "Should You Mask 15% in Masked Language Modeling?" (2023), whose models have this form.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import roberta
from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import add_prefix, build_heads, outside_layers, weight_rows

BASE = roberta_like.BASE | dict(norm_at=("embed", "in", "final"))
PRESETS = roberta_like.PRESETS
config = partial(build_config, "roberta_prelayernorm", BASE, PRESETS, "base")
Model = roberta_like.Model
POST_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
LAYER = weight_rows(
    *[row for row in bert_like.LAYER if row.name not in POST_NORMS],
    ("attention.LayerNorm", "attention_in_norm"),
    ("intermediate.LayerNorm", "mlp_in_norm"),
)
ENDS = outside_layers(bert_like.BODY)
BODY = (
    *ENDS,
    *weight_rows(("LayerNorm", "encoder/final_norm")),
    *add_prefix("encoder.layer.{i}", "encoder/layer_{i}", LAYER),
)
PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="roberta-prelayernorm",
    prefix="roberta_prelayernorm.",
    names=lambda cfg: BODY,
    heads=build_heads("RobertaPreLayerNorm", **roberta_like.HEADS),
)
