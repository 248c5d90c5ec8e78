"""RoBERTa: BERT without segments and next-sentence prediction.

Positions count the tokens that are not padding.

Reference: Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach" (2019), sections 2
and 4.
"""

import dataclasses
from functools import partial
from types import SimpleNamespace

from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.common.family_row import family_row
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Published, build_heads

BASE = roberta_like.BASE
PRESETS = roberta_like.PRESETS
Model = roberta_like.Model

config = partial(build_config, "roberta", roberta_like.BASE, roberta_like.PRESETS, "base")


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


def alias(
    name: str, architecture: str, prefix: str = PUBLISHED.prefix, **base: object
) -> SimpleNamespace:
    """Returns the row of a family with RoBERTa's architecture.

    Args:
      name: the family.
      architecture: how the names of its classes begin.
      prefix: of its tensors, by default RoBERTa's.
      **base: fields that its models have in common.
    """
    published = dataclasses.replace(
        PUBLISHED,
        model_type=name.replace("_", "-"),
        prefix=prefix,
        defaults={**PUBLISHED.defaults, "vocab_size": 30522},
        heads=build_heads(architecture, **roberta_like.HEADS),
    )
    return family_row(name, BASE | base, PRESETS, "base", Model, published)


FAMILIES = {
    # For French: Martin et al., "CamemBERT: a Tasty French Language Model" (2020), section 4.
    "camembert": alias("camembert", "Camembert", vocab_size=32005),
    # For a hundred languages: Conneau et al., "Unsupervised Cross-lingual Representation Learning
    # at Scale" (2020), section 3.
    "xlm_roberta": alias("xlm_roberta", "XLMRoberta", vocab_size=250002),
    # Pretrained by predicting a teacher's hidden states: Baevski et al., "data2vec: A General
    # Framework for Self-supervised Learning in Speech, Vision and Language" (2022), section 4.4.
    "data2vec_text": alias("data2vec_text", "Data2VecText", "data2vec_text."),
}


def family(name: str) -> SimpleNamespace:
    """Returns the family of this name that has RoBERTa's architecture."""
    return FAMILIES[name]
