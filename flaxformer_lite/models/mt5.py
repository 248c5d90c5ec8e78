"""mT5: T5 1.1 for a hundred languages.

Reference: Xue et al., "mT5: A Massively Multilingual Pre-trained Text-to-Text Transformer" (2021),
section 3.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import t5
from flaxformer_lite.models.common import t5_like
from flaxformer_lite.models.presets import build_config

BASE = t5_like.BASE | t5_like.V1_1 | dict(vocab_size=250112)
PRESETS = {
    name.removeprefix("v1_1_"): sizes
    for name, sizes in t5_like.PRESETS.items()
    if name.startswith("v1_1_")
}
config = partial(build_config, "mt5", BASE, PRESETS, "small")
Model = t5_like.Model


# Unlike T5's, logits are never scaled, tied or not.
PUBLISHED = dataclasses.replace(
    t5.PUBLISHED,
    model_type="mt5",
    defaults=dict(num_layers=8, feed_forward_proj="gated-gelu", tie_word_embeddings=True),
    heads=t5_like.heads("MT5"),
    read=t5_like.read_sizes,
    write=t5_like.write_sizes,
)
