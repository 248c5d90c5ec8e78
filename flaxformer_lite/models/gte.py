"""GTE of 2024: BERT with rotary positions and gated GELU.

Reference: Zhang et al., "mGTE: Generalized Long-Context Text Representation and Reranking Models
for Multilingual Text Retrieval" (2024), section 2.
"""

from functools import partial

from flaxformer_lite.models import jina_embeddings_v3
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    add_prefix,
    build_heads,
    outside_layers,
    weight_rows,
)
from flaxformer_lite.nn.positions.rope import Rope

BASE = bert_like.BASE | dict(
    vocab_size=250048,
    max_length=8192,
    type_vocab_size=1,
    position=Rope(base=160000.0),
    mlp="gated",
    bias_at=("query", "key", "value", "out", "mlp_down", "logits"),
    pad_token_id=1,
    head="masked_lm",
)
PRESETS = {"tiny": bert_like.PRESETS["tiny"], "base": bert_like.PRESETS["base"]}
config = partial(build_config, "gte", BASE, PRESETS, "base")


class Model(EncoderModel):
    heads = ("none", "masked_lm", "sequence_classification", "token_classification")
    pooled = ("sequence_classification",)
    masked_lm_activation = "gelu"


LAYER = weight_rows(
    ("attention.qkv_proj", ("attention/query", "attention/key", "attention/value"), "3OI"),
    ("attention.o_proj", "attention/out"),
    ("attn_ln", "attention_out_norm"),
    ("mlp.up_gate_proj", ("mlp/up", "mlp/gate"), "2OI"),
    ("mlp.down_proj", "mlp/down"),
    ("mlp_ln", "mlp_out_norm"),
)
ENDS = outside_layers(bert_like.BODY)
BODY = ENDS + add_prefix("encoder.layer.{i}", "encoder/layer_{i}", LAYER)
LM_HEAD = weight_rows(
    ("lm_head.dense", "masked_lm/dense"),
    ("lm_head.norm", "masked_lm/norm"),
    ("lm_head.decoder.weight", "masked_lm/vocab/kernel"),
    ("lm_head.decoder.bias", "masked_lm/vocab/bias"),
)
PUBLISHED = Published(
    model_type="gte",
    defaults=dict(rope_theta=160000.0),
    prefix="gte.",
    spellings={r"^new\.": ""},  # of the authors' files
    names=lambda cfg: BODY,
    heads=build_heads(
        "Gte",
        none=(),
        masked_lm=LM_HEAD,
        sequence_classification=bert_like.CLASSIFIER,
        token_classification=bert_like.CLASSIFIER,
    ),
    fields=bert_like.FIELDS,
    read=jina_embeddings_v3.read,
    write=jina_embeddings_v3.write,
    ignored=bert_like.BUFFERS,
)
