"""RoFormer: BERT with rotary queries and keys instead of added positions, and without a pooler.

Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021),
section 3.
"""

from functools import partial

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import Published, build_heads, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

BASE = bert_like.BASE | dict(
    vocab_size=50000,
    max_length=1536,
    position=Rope(layout="interleaved"),
    bias_at=("embed", *bert_like.BASE["bias_at"]),
    head="masked_lm",
)
PRESETS = {  # the published Chinese models
    "tiny": bert_like.PRESETS["tiny"],
    "small": dict(d_model=384, num_heads=6, mlp_dim=1536, encoder_layers=6),
    "base": bert_like.PRESETS["base"],
}
config = partial(build_config, "roformer", BASE, PRESETS, "base")


class Model(EncoderModel):
    """RoFormer.

    Multiple choice reads the last column, like the published class, so pad those batches on the
    left.
    """

    heads = ("none", "masked_lm", "causal_lm", *bert_like.CLASSIFIERS)
    pooled = ("sequence_classification",)
    padded_heads = ("multiple_choice",)
    pooler_activation = ""

    def summarise(self, x_BTD, attention_mask_BT):
        if self.cfg.head == "multiple_choice":
            return x_BTD[:, -1]
        return super().summarise(x_BTD, attention_mask_BT)


def read(fields: Fields) -> ModelFields:
    return {"position": Rope(layout="interleaved", values=fields.get("rotary_value", False))}


def write(cfg: ModelConfig) -> Json:
    return {
        "rotary_value": getattr(cfg.position, "values", False),
        "embedding_size": cfg.embedding_width,
    }


def derived(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Computes the sines and cosines, which the file holds although they follow from the sizes."""
    angles_TP = np.arange(cfg.max_length)[:, None] * Rope().frequencies(cfg.head_width)[None]
    return {
        "encoder.embed_positions.weight": np.concatenate([np.sin(angles_TP), np.cos(angles_TP)], 1)
    }


PUBLISHED = Published(
    model_type="roformer",
    prefix="roformer.",
    names=lambda cfg: bert_like.BODY + weight_rows(("embeddings_project", "embed/project")),
    heads=build_heads(
        "RoFormer",
        **roberta_like.HEADS
        | dict(masked_lm=bert_like.PREDICTIONS, causal_lm=bert_like.PREDICTIONS),
    ),
    fields=bert_like.FIELDS | {"embedding_size": "embedding_size"},
    fixed=bert_like.FIXED,
    read=read,
    write=write,
    duplicates={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    derived=derived,
    ignored=bert_like.BUFFERS,
)
