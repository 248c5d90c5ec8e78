"""Jina embeddings v3: XLM-RoBERTa with rotary positions.

The adapters for its tasks are files of their own, which `load_pretrained` takes as `adapter`.

Reference: Sturua et al., "jina-embeddings-v3: Multilingual Embeddings With Task LoRA" (2024),
section 4.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import nomic_bert, roberta
from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
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
    vocab_size=250002,
    max_length=8194,
    type_vocab_size=1,
    position=Rope(base=20000.0),
    norm_eps=1e-5,
    pad_token_id=1,
    head="masked_lm",
)
PRESETS = {"tiny": bert_like.PRESETS["tiny"], "large": bert_like.PRESETS["large"]}
config = partial(build_config, "jina_embeddings_v3", BASE, PRESETS, "large")
HEADS = omit_fields(roberta_like.HEADS, "causal_lm", "multiple_choice")


class Model(EncoderModel):
    heads = tuple(HEADS)
    masked_lm_activation = "gelu"


LAYER = weight_rows(
    ("mixer.Wqkv", ("attention/query", "attention/key", "attention/value"), "3OI"),
    ("mixer.out_proj", "attention/out"),
    ("norm1", "attention_out_norm"),
    ("mlp.fc1", "mlp/up"),
    ("mlp.fc2", "mlp/down"),
    ("norm2", "mlp_out_norm"),
)
ENDS = outside_layers(nomic_bert.BODY)
BODY = ENDS + add_prefix("encoder.layers.{i}", "encoder/layer_{i}", LAYER)


def read(fields: Fields) -> ModelFields:
    return {"position": read_rope(fields)}


def write(cfg: ModelConfig) -> Json:
    return write_rope(cfg.position)


PUBLISHED = Published(
    model_type="jina_embeddings_v3",
    defaults=dict(rope_theta=20000.0),
    prefix="roberta.",
    names=lambda cfg: BODY,
    heads=build_heads("JinaEmbeddingsV3", **HEADS),
    fields=bert_like.FIELDS,
    read=read,
    write=write,
    duplicates=roberta.PUBLISHED.duplicates,
    ignored=bert_like.BUFFERS,
)
