"""Jina embeddings v2: BERT with symmetric ALiBi and gated GELU.

Its files have BERT's model_type, and classes of their own.

Reference: Günther et al., "Jina Embeddings 2: 8192-Token General-Purpose Text Embeddings for Long
Documents" (2023), section 3.1.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models import bert
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import (
    add_prefix,
    build_heads,
    omit_prefixes,
    outside_layers,
    weight_rows,
)
from flaxformer_lite.nn.positions.alibi import Alibi

BASE = bert_like.BASE | dict(
    max_length=8192,
    position=Alibi(),
    mlp="gated",
    bias_at=("query", "key", "value", "out", "mlp_down", "logits"),
    head="masked_lm",
)
PRESETS = bert_like.PRESETS
config = partial(build_config, "jina_bert", BASE, PRESETS, "base")


class Model(EncoderModel):
    heads = ("none", "masked_lm", "sequence_classification")


LAYER = omit_prefixes(bert_like.LAYER, "intermediate.", "output.") + weight_rows(
    ("mlp.gated_layers", ("mlp/gate", "mlp/up"), "2OI"),
    ("mlp.wo", "mlp/down"),
    ("mlp.layernorm", "mlp_out_norm"),
)
ENDS = omit_prefixes(outside_layers(bert_like.BODY), "embeddings.position_embeddings")
BODY = ENDS + add_prefix("encoder.layer.{i}", "encoder/layer_{i}", LAYER)
FIXED = dict(position_embedding_type="alibi", feed_forward_type="geglu", hidden_act="gelu")


def settle(cfg: ModelConfig, tensors: Mapping[str, np.ndarray]) -> ModelConfig:
    """Takes the body where a file names a language model, but holds none, as the published do."""
    if cfg.head == "masked_lm" and "cls.predictions.bias" not in tensors:
        return dataclasses.replace(cfg, head="none")
    return cfg


PUBLISHED = dataclasses.replace(
    bert.PUBLISHED,
    names=lambda cfg: BODY,
    heads=build_heads(
        "JinaBert",
        none=(),
        masked_lm=bert_like.PREDICTIONS,
        sequence_classification=bert_like.CLASSIFIER,
    ),
    fields=omit_fields(bert_like.FIELDS, "hidden_act"),
    fixed=bert_like.FIXED | FIXED,
    settle=settle,
    relatives={},
)
