"""BERT: a post-norm encoder with learned positions and token types.

Reference: Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers"
(2019).
"""

from functools import partial

from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import Head, Published, build_heads

BASE = bert_like.BASE
PRESETS = bert_like.PRESETS

config = partial(build_config, "bert", bert_like.BASE, bert_like.PRESETS, "base")
Model = EncoderModel

PUBLISHED = Published(
    model_type="bert",
    prefix="bert.",
    names=lambda cfg: bert_like.BODY,
    heads=build_heads(
        "Bert",
        none=(),
        masked_lm=bert_like.PREDICTIONS,
        pretraining=bert_like.PREDICTIONS + bert_like.PAIRS,
        next_sentence=bert_like.PAIRS,
        causal_lm=Head("BertLMHeadModel", bert_like.PREDICTIONS, fixed={"is_decoder": True}),
        **bert_like.CLASSIFIERS,
    ),
    fields=bert_like.FIELDS,
    fixed=bert_like.FIXED,
    duplicates={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=bert_like.BUFFERS,
    relatives=dict.fromkeys(
        ("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"), "jina_bert"
    ),
)
