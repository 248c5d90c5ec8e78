"""UMT5: mT5 where every layer has its own relative positions.

Reference: Chung et al., "UniMax: Fairer and more Effective Language Sampling for Large-Scale
Multilingual Pretraining" (2023).
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import mt5
from flaxformer_lite.models.common import t5_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets

BASE = mt5.BASE | dict(vocab_size=256384, position=T5Buckets(per_layer=True))
PRESETS = mt5.PRESETS
config = partial(build_config, "umt5", BASE, PRESETS, "small")
Model = t5_like.Model


def read(fields: Fields) -> ModelFields:
    """Reads T5's fields, with a table of positions in each layer.

    Published models have tie_word_embeddings=false: their logits were trained without a scale, as
    in transformers 4. Transformers 5 always treats the field as true, scales, and writes true;
    files that it saved are therefore scaled here too. Greedy search writes the same text either
    way; probabilities differ.
    """
    sizes = t5_like.read(fields)
    return sizes | {"position": dataclasses.replace(sizes["position"], per_layer=True)}


PUBLISHED = dataclasses.replace(
    mt5.PUBLISHED,
    model_type="umt5",
    defaults={**mt5.PUBLISHED.defaults, "vocab_size": 250112},
    heads=t5_like.heads("UMT5"),
    read=read,
    write=t5_like.write,
)
