"""Reads the text model of a CLIP that has its image model too; writes it as clip_text_model.

Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision"
(2021), section 2.4.
"""

import dataclasses
import logging

from flaxformer_lite.files.read import Json
from flaxformer_lite.models import clip_text_model
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.weight_map import Head

LOG = logging.getLogger("flaxformer_lite")
BASE = clip_text_model.BASE
PRESETS = clip_text_model.PRESETS
config = clip_text_model.config  # models that it builds are of that family
Model = clip_text_model.Model
OUTER = ("architectures", "model_type", "projection_dim", "quantization_config")


def flatten(published: Json) -> Json:
    """Returns the fields of the text model; those of `text_config_dict` take precedence."""
    text = {**(published.get("text_config") or {}), **(published.get("text_config_dict") or {})}
    return {**text, **{name: published[name] for name in OUTER if name in published}}


def read(fields: Fields) -> ModelFields:
    LOG.warning("clip: only the text model is read; its image model is left out.")
    return clip_text_model.read(fields)


PUBLISHED = dataclasses.replace(
    clip_text_model.PUBLISHED,
    model_type="clip",
    heads={
        "projection": Head("CLIPModel", clip_text_model.PROJECTION),
        "none": Head("CLIPTextModel"),
    },
    flatten=flatten,
    read=read,
    ignored=(
        *clip_text_model.PUBLISHED.ignored,
        r"(vision_model|visual_projection)\..*",
        r"logit_scale",
    ),
)
