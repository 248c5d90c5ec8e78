"""Nomic BERT: BERT with rotary positions, gated SiLU and no biases in its layers.

Reference: Nussbaum et al., "Nomic Embed: Training a Reproducible Long Context Text Embedder"
(2024), section 3.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import Published, add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

BASE = bert_like.BASE | dict(
    vocab_size=30528,
    max_length=2048,
    position=Rope(base=1000.0),
    activation="silu",
    mlp="gated",
    bias_at=("logits",),
    dropout=0.0,
    head="masked_lm",
)
PRESETS = {"tiny": bert_like.PRESETS["tiny"], "base": bert_like.PRESETS["base"]}
config = partial(build_config, "nomic_bert", BASE, PRESETS, "base")


class Model(EncoderModel):
    heads = ("none", "masked_lm", "sequence_classification", "token_classification")
    pooled = ("sequence_classification",)


LAYER = weight_rows(
    ("attn.Wqkv", ("attention/query", "attention/key", "attention/value"), "3OI"),
    ("attn.out_proj", "attention/out"),
    ("norm1", "attention_out_norm"),
    ("mlp.fc11", "mlp/up"),
    ("mlp.fc12", "mlp/gate"),
    ("mlp.fc2", "mlp/down"),
    ("norm2", "mlp_out_norm"),
)
BODY = (
    *weight_rows(
        ("embeddings.word_embeddings", "token_embed"),
        ("embeddings.token_type_embeddings.weight", "embed/token_types"),
        ("emb_ln", "embed/norm"),
        ("pooler.dense", "pooler/dense"),
    ),
    *add_prefix("encoder.layers.{i}", "encoder/layer_{i}", LAYER),
)
PREDICTIONS = weight_rows(
    ("cls.predictions.transform.dense", "masked_lm/dense"),
    ("cls.predictions.transform.layer_norm", "masked_lm/norm"),
    ("cls.predictions.decoder.weight", "masked_lm/vocab/kernel"),
    ("cls.predictions.bias", "masked_lm/vocab/bias"),
)


def read(fields: Fields) -> ModelFields:
    return {"head_dim": fields.get("head_dim", 0), "position": read_rope(fields)}


def write(cfg: ModelConfig) -> Json:
    return {"head_dim": cfg.head_width, **write_rope(cfg.position)}


PUBLISHED = Published(
    model_type="nomic_bert",
    defaults=dict(rope_theta=1000.0),
    prefix="nomic_bert.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "NomicBert",
        none=(),
        masked_lm=PREDICTIONS,
        sequence_classification=bert_like.CLASSIFIER,
        token_classification=bert_like.CLASSIFIER,
    ),
    fields=bert_like.FIELDS,
    read=read,
    write=write,
    duplicates={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=bert_like.BUFFERS,
)
