"""Model2Vec's static embeddings (potion and others), whose unknown tokens do not count.

Reference: Tulkens and van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings" (2024).
"""

import dataclasses
from functools import partial

import numpy as np

from flaxformer_lite.contrib.static_embeddings.models import static_embedding
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, weight_rows
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

BASE = static_embedding.BASE
PRESETS = static_embedding.PRESETS
config = partial(build_config, "model2vec", BASE, PRESETS, "base")
Model = static_embedding.Model


def join_rows(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a table with a row for each token, where several tokens share one.

    Raises:
      WeightsError: the tensors do not fit each other.
    """
    table_VD = tensors["embeddings"].array.astype(np.float32)
    try:
        if "mapping" in tensors:
            table_VD = table_VD[tensors["mapping"].array]
        if "weights" in tensors:
            table_VD = table_VD * tensors["weights"].array[:, None]
    except (IndexError, ValueError) as error:
        raise WeightsError(
            f"embeddings, mapping and weights of a model2vec do not fit each other ({error})."
        ) from None
    return {"embeddings": Tensor(table_VD)}


PUBLISHED = dataclasses.replace(
    static_embedding.PUBLISHED,
    model_type="model2vec",
    names=lambda cfg: weight_rows(("embeddings", "token_embed/embedding")),
    heads={"none": Head("StaticModel")},
    arrange=join_rows,
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
