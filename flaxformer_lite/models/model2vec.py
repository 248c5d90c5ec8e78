"""Model2Vec's static embeddings (potion and others), whose unknown tokens do not count.

Reference: Tulkens and van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings" (2024).
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import static_embedding
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, weight_rows

BASE = static_embedding.BASE
PRESETS = static_embedding.PRESETS
config = partial(build_config, "model2vec", BASE, PRESETS, "base")
Model = static_embedding.Model
PUBLISHED = dataclasses.replace(
    static_embedding.PUBLISHED,
    model_type="model2vec",
    names=lambda cfg: weight_rows(("embeddings", "token_embed/embedding")),
    heads={"none": Head("StaticModel")},
    ignored=("mapping", "weights"),  # they are in the table by then
    harmless=(  # how the table was made; the tokenizer and pooling read what else there is
        "apply_pca",
        "apply_zipf",
        "embedding_dtype",
        "pooling",
        "seq_length",
        "sif_coefficient",
        "tokenizer_name",
        "vocabulary_quantization",
    ),
)
