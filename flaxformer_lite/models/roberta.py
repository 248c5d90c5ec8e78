"""RoBERTa: BERT without segments and next-sentence prediction.

Positions count the tokens that are not padding.

Reference: Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach" (2019), sections 2
and 4.
"""

from functools import partial

from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import Published, build_heads

BASE = roberta_like.BASE
PRESETS = roberta_like.PRESETS
Model = roberta_like.Model

config = partial(build, "roberta", roberta_like.BASE, roberta_like.PRESETS, "base")


PUBLISHED = Published(
    model_type="roberta",
    defaults=dict(max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12),
    prefix="roberta.",
    names=lambda cfg: bert_like.BODY,
    heads=build_heads("Roberta", **roberta_like.HEADS),
    fields=bert_like.FIELDS,
    fixed=bert_like.FIXED,
    duplicates={"lm_head.decoder.bias": "lm_head.bias"},
    ignored=bert_like.BUFFERS,
)
