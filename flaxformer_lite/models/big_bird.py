"""BigBird: BERT for long rows, with block-sparse attention.

Reference: Zaheer et al., "Big Bird: Transformers for Longer Sequences" (2020).
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bert
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.skeletons.outputs import Output
from flaxformer_lite.models.weight_map import (
    Head,
    Published,
    build_heads,
    omit_prefixes,
    weight_rows,
)
from flaxformer_lite.nn.mixers.block_sparse import BlockSparseConfig
from flaxformer_lite.nn.modules.heads import Transform
from flaxformer_lite.nn.modules.norms import Norm

BASE = bert_like.BASE | dict(
    vocab_size=50358, max_length=4096, activation="gelu_tanh", mixer=BlockSparseConfig()
)
PRESETS = {name: bert_like.PRESETS[name] for name in ("tiny", "base", "large")}
config = partial(build_config, "big_bird", BASE, PRESETS, "base")
SEPARATOR_ID = 66  # the id that ends a question
QUESTION_PENALTY = 1e6  # subtracted from logits of the question's tokens


class SpanLayer(nn.Module):
    """A feed-forward with a residual and a norm, before the logits of answers."""

    cfg: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        cfg = self.cfg
        mlp = build_layers.feed_forward(cfg).module(self.execution, name="mlp")
        return Norm(cfg.norm_config, self.execution, name="norm")(mlp(x_BTD) + x_BTD)


class Model(EncoderModel):
    """BigBird; files of all heads but question answering hold a pooler, also where none reads it.

    Question answering takes what stands up to the first separator as the question: its tokens have
    another type, and are no answers.
    """

    heads = ("none", "masked_lm", "causal_lm", "pretraining", *bert_like.CLASSIFIERS)
    heads_of_ids = ("question_answering",)
    pooled = tuple(head for head in heads if head != "question_answering")
    head_modules = ("transform",)

    def setup_head(self) -> None:
        super().setup_head()
        cfg = self.cfg
        if cfg.head == "question_answering":
            self.spans = SpanLayer(cfg, self.execution)
        if cfg.head == "sequence_classification":
            self.transform = Transform(
                cfg.activation, initial=cfg.initial, execution=self.execution
            )

    def summarise(self, x_BTD, attention_mask_BT) -> jax.Array:
        if self.cfg.head == "sequence_classification":
            return self.transform(x_BTD[:, 0])
        return super().summarise(x_BTD, attention_mask_BT)

    def classify(self, x: jax.Array) -> jax.Array:
        if self.cfg.head == "question_answering":
            x = self.spans(x)
        return super().classify(x)

    def forward(self, input_ids, *, token_type_ids=None, **inputs) -> Output:
        if self.is_initializing() and self.cfg.head in self.pooled:
            self.pooler(jnp.zeros((1, 1, self.cfg.d_model)))
        if self.cfg.head != "question_answering" or input_ids is None:
            return super().forward(input_ids, token_type_ids=token_type_ids, **inputs)
        ids_BT = jnp.asarray(input_ids)
        column_1T = jnp.arange(ids_BT.shape[1])[None]
        question_BT = column_1T <= jnp.argmax(ids_BT == SEPARATOR_ID, axis=1)[:, None]
        if token_type_ids is None:
            token_type_ids = 1 - question_BT.astype(jnp.int32)
        output = super().forward(input_ids, token_type_ids=token_type_ids, **inputs)
        far_BT = jnp.where(question_BT & (column_1T > 0), QUESTION_PENALTY, 0.0)
        start_BT = output.start_logits
        end_BT = output.end_logits
        assert start_BT is not None and end_BT is not None, "the head's logits"
        return output.replace(start_logits=start_BT - far_BT, end_logits=end_BT - far_BT)


POOLER = weight_rows(("pooler", "pooler/dense"))
BODY = omit_prefixes(bert_like.BODY, "pooler.dense") + POOLER
SEQUENCE = weight_rows(
    ("classifier.dense", "transform/dense"), ("classifier.out_proj", "classifier/dense")
)
SPANS = weight_rows(
    ("qa_classifier.intermediate.dense", "spans/mlp/up"),
    ("qa_classifier.output.dense", "spans/mlp/down"),
    ("qa_classifier.output.LayerNorm", "spans/norm"),
    ("qa_classifier.qa_outputs", "classifier/dense"),
)
SPAN_HEAD = Head("BigBirdForQuestionAnswering", SPANS, fixed={"sep_token_id": SEPARATOR_ID})
BIASES = ("query", "key", "value")


def read(fields: Fields) -> ModelFields:
    """Reads the kind of attention, its biases, and the scale of the embeddings."""
    kind = fields.get("attention_type", "block_sparse")
    if kind not in ("block_sparse", "original_full"):
        raise ConfigError(
            f"config.json: attention_type={kind!r}: must be block_sparse or original_full."
        )
    sparse = BlockSparseConfig(
        block=fields.size("block_size", 64), random_blocks=fields.get("num_random_blocks", 3)
    )
    left_out = () if fields.get("use_bias", True) else BIASES
    return {
        "mixer": sparse if kind == "block_sparse" else None,
        "bias_at": tuple(slot for slot in BASE["bias_at"] if slot not in left_out),
        "embed_power": 0.5 if fields.get("rescale_embeddings", False) else 0.0,
    }


def write(cfg: ModelConfig) -> Json:
    mixer = cfg.mixer
    sparse: Json = {"attention_type": "original_full"}
    if isinstance(mixer, BlockSparseConfig):
        sparse = {
            "attention_type": "block_sparse",
            "block_size": mixer.block,
            "num_random_blocks": mixer.random_blocks,
        }
    return sparse | {
        "use_bias": "query" in cfg.bias_at,
        "rescale_embeddings": bool(cfg.embed_power),
    }


CLASSIFIERS = bert_like.CLASSIFIERS | dict(sequence_classification=SEQUENCE)
PUBLISHED = Published(
    model_type="big_bird",
    prefix="bert.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "BigBird",
        none=(),
        masked_lm=bert_like.PREDICTIONS,
        causal_lm=bert_like.PREDICTIONS,
        pretraining=bert_like.PREDICTIONS + bert_like.PAIRS,
        **CLASSIFIERS | dict(question_answering=SPAN_HEAD),
    ),
    fields=bert_like.FIELDS,
    fixed=bert_like.FIXED,
    defaults=dict(sep_token_id=SEPARATOR_ID),
    duplicates=bert.PUBLISHED.duplicates,
    read=read,
    write=write,
    ignored=bert_like.BUFFERS,
)
