"""ERNIE: BERT with a table of tasks beside its table of segments.

All tokens have the first task, as in transformers where no task_type_ids are given.

Reference: Sun et al., "ERNIE 2.0" (2020), section 3.2.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bert
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, build_heads, weight_rows

BASE = bert_like.BASE | dict(vocab_size=40000, max_length=2048, type_vocab_size=4)
BASE |= dict(task_type_vocab_size=3, norm_eps=1e-5)
PRESETS = bert_like.PRESETS
config = partial(build_config, "ernie", BASE, PRESETS, "base")
Model = bert.Model
TASKS = weight_rows(("embeddings.task_type_embeddings.weight", "embed/task_types"))


def read(fields: Fields) -> ModelFields:
    tasks = fields.size("task_type_vocab_size", 3)
    if not fields.get("use_task_id", False):
        tasks = 0
    return {"task_type_vocab_size": tasks}


def write(cfg: ModelConfig) -> Json:
    tasks = cfg.task_type_vocab_size
    return {"use_task_id": tasks > 0, "task_type_vocab_size": tasks or 3}


PUBLISHED = dataclasses.replace(
    bert.PUBLISHED,
    model_type="ernie",
    prefix="ernie.",
    defaults=dict(
        vocab_size=30522, max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12
    ),
    names=lambda cfg: bert_like.BODY + TASKS,
    heads=build_heads(
        "Ernie",
        none=(),
        masked_lm=bert_like.PREDICTIONS,
        pretraining=bert_like.PREDICTIONS + bert_like.PAIRS,
        next_sentence=bert_like.PAIRS,
        causal_lm=Head("ErnieForCausalLM", bert_like.PREDICTIONS, fixed={"is_decoder": True}),
        **bert_like.CLASSIFIERS,
    ),
    read=read,
    write=write,
)
