"""MPNet: RoBERTa with T5's bucketed relative positions in attention, beside learned ones.

Reference: Song, Tan, Qin, Lu, Liu, "MPNet: Masked and Permuted Pre-training for Language
Understanding" (2020), section 2 and appendix A.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import roberta
from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.fields import omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import (
    add_prefix,
    attention_rows,
    build_heads,
    omit_prefixes,
    outside_layers,
    weight_rows,
)
from flaxformer_lite.nn.positions.learned_t5_buckets import LearnedT5Buckets

BASE = roberta_like.BASE | dict(
    vocab_size=30527, type_vocab_size=0, position=LearnedT5Buckets(), norm_eps=1e-12
)
PRESETS = {"tiny": bert_like.PRESETS["tiny"], "base": bert_like.PRESETS["base"]}
config = partial(build_config, "mpnet", BASE, PRESETS, "base")


class Model(roberta_like.Model):
    heads = ("none", "masked_lm", *bert_like.CLASSIFIERS)
    pooled = ("none", "sequence_classification", "multiple_choice")


LAYER = add_prefix("attention.attn", "attention", attention_rows("q", "k", "v", "o")) + weight_rows(
    ("attention.LayerNorm", "attention_out_norm"),
    ("intermediate.dense", "mlp/up"),
    ("output.dense", "mlp/down"),
    ("output.LayerNorm", "mlp_out_norm"),
)
BODY = (
    *omit_prefixes(outside_layers(bert_like.BODY), "embeddings.token_type"),
    *weight_rows(("encoder.relative_attention_bias.weight", "encoder/position/relative")),
    *add_prefix("encoder.layer.{i}", "encoder/layer_{i}", LAYER),
)
HEADS = omit_fields(roberta_like.HEADS, "causal_lm")
PUBLISHED = dataclasses.replace(
    roberta.PUBLISHED,
    model_type="mpnet",
    prefix="mpnet.",
    defaults=dict(max_position_embeddings=512),
    names=lambda cfg: BODY,
    heads=build_heads("MPNet", **HEADS),
    fields=omit_fields(bert_like.FIELDS, "type_vocab_size"),
    # transformers uses these values whatever the config says
    fixed={"pad_token_id": 1, "relative_attention_num_buckets": 32},
)
