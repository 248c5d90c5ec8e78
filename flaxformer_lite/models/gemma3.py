"""Reads the text model of a Gemma 3 that has an image tower too; writes it as gemma3_text.

Reference: Gemma Team, "Gemma 3 Technical Report" (2025), section 2.
"""

import dataclasses
import logging

from flaxformer_lite.files.read import Json
from flaxformer_lite.models import gemma3_text
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.weight_map import Head

LOG = logging.getLogger("flaxformer_lite")
BASE = gemma3_text.BASE
PRESETS = gemma3_text.PRESETS
config = gemma3_text.config  # models that it builds are of that family
Model = gemma3_text.Model
OUTER = ("architectures", "model_type", "tie_word_embeddings", "quantization_config")


def flatten(published: Json) -> Json:
    """Returns the fields of the text model."""
    text = published.get("text_config") or {}
    return {**text, **{name: published[name] for name in OUTER if name in published}}


def read(fields: Fields) -> ModelFields:
    LOG.warning("gemma3: only the text model is read; its image tower is left out.")
    return gemma3_text.read(fields)


PUBLISHED = dataclasses.replace(
    gemma3_text.PUBLISHED,
    model_type="gemma3",
    # of transformers 4 and 5
    prefix="language_model.model.",
    heads={
        "lm": Head("Gemma3ForConditionalGeneration"),
        "none": Head("Gemma3Model", prefix="model.language_model."),
    },
    flatten=flatten,
    read=read,
    ignored=(r"(model\.)?(vision_tower|multi_modal_projector)\..*",),
)
