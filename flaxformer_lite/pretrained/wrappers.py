"""Reads the text half of a model that sees or hears too, as a folder of that half alone.

The config.json of such a wrapper nests its text half's, whose model_type names the family.
"""

import logging
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.models.weight_map import ENDINGS, WeightRow
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

LOG = logging.getLogger("flaxformer_lite")
NESTED = ("thinker_config", "text_config", "llm_config", "language_config")
# model_types that compute the same of text alone
SAME = {
    "kimi_k2": "deepseek_v3",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl": "qwen2",  # transformers 4 nested nothing
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
# fields of the whole that are about its text, too, and count before the half's own
OF_WHOLE = ("tie_word_embeddings", "projection_dim", "quantization_config", "id2label", "label2id")
# what the code of a wrapper or of its half does, whatever their config says
FIXED: dict[str, Json] = {
    # the token_type_ids of its processor
    "paligemma": {"use_bidirectional_attention": True},
    "qwen3_vl_moe_text": {"norm_topk_prob": True},
}
# Only their own classes scale the logits of Cohere and Granite, and one wrapper does.
SCALES = ("logit_scale", "logits_scaling")
SCALED = ("hyperclovax_vision_v2",)
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")  # of the whole where the half has none
# modules around the text half
AROUND = re.compile(r"^(?:(?:thinker|model|language_model|text_model)\.)+")
OF_TEXT = re.compile(r"(?:^|\.)(?:language_model|text_model)\.")
ENDS = {"ForConditionalGeneration": "lm"} | {ending: head for head, ending in ENDINGS.items()}


def flatten(published: Json, folder: Path) -> Json:
    """Returns the config of the text half as its own folder would have it; others unchanged.

    Raises:
      ConfigError: the family of the text half is not here.
    """
    name = _name_of(published)
    text = _text_of(published)
    if text is None:
        if name in SAME:
            return published | {"model_type": SAME[name]}
        return published
    family = _family_of(text)
    if family is None:
        kind = text.get("model_type")
        near = registry.did_you_mean(str(kind), registry.available("models"))
        raise ConfigError(
            f"{folder}/config.json: text model_type {quote_value(kind)} is not here"
            f"{near or '; docs/families.md lists those that are.'}"
        )
    # The file decides where neither says: tables that differ are untied.
    tied = {"tie_word_embeddings": text.get("tie_word_embeddings", True)}
    outer = {field: published[field] for field in OF_WHOLE if published.get(field) is not None}
    tokens = {field: published.get(field) for field in TOKENS if text.get(field) is None}
    flat = text | tokens | tied | outer
    flat |= FIXED.get(name, {}) | FIXED.get(_name_of(text), {})
    flat["model_type"] = family.PUBLISHED.model_type
    flat["architectures"] = [_architecture(published, text, family)]
    for field in SCALES:
        if field in flat and name not in SCALED:
            flat[field] = 1.0
    for field in ("rope_scaling", "rope_parameters"):
        rope = flat.get(field)
        # Texts stand at the same place on all axes of an image.
        if isinstance(rope, dict) and rope.get("type", rope.get("rope_type")) == "mrope":
            flat[field] = {**rope, "type": "default", "rope_type": "default"}
    return flat


def take_text(published: Json, tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Returns the tensors of a wrapper's text half by the names that its own folder has.

    Those of other parts are left out with a notice; a folder of another kind is left as it is.

    Raises:
      WeightsError: two tensors have one name without the modules around them.
    """
    text = _text_of(published)
    family = text and _family_of(text)
    if not family:
        return tensors
    rows: list[WeightRow] = list(family.PUBLISHED.names(family.config()))
    for head in family.PUBLISHED.heads.values():
        rows += head.rows
    roots = {row.name.partition(".")[0] for row in rows}
    kept = {}
    others: Counter[str] = Counter()
    for name, tensor in tensors.items():
        short = AROUND.sub("", name)
        if OF_TEXT.search(name) or short.partition(".")[0] in roots:
            if short in kept:
                raise WeightsError(
                    f"{folder}: {name} is a second {short}: the text half is there twice; remove"
                    " one."
                )
            kept[short] = tensor
        else:
            others[short.partition(".")[0]] += 1
    if others:
        LOG.warning(
            "%s: the text half of a %s is read; %s tensors of %s are left out.",
            folder,
            quote_value(published.get("model_type")),
            sum(others.values()),
            ", ".join(sorted(others)),
        )
    return kept


def _name_of(config: Json) -> str:
    return str(config.get("model_type", "")).replace("-", "_")


def _text_of(published: Json) -> Json | None:
    """Returns the config of a wrapper's text half; None for a model of text alone."""
    inner = published
    for field in NESTED:
        if isinstance(inner.get(field), dict):
            inner = inner[field]
    if inner is published and not published.get("vision_config"):
        return None
    changed = published.get("text_config_dict")  # in CLIP's old files, beside the defaults
    if isinstance(changed, dict):
        return inner | changed
    return inner


def _class_of(config: Json) -> str:
    """Returns the first class that a config names; "" if it names none."""
    named = config.get("architectures")
    if not isinstance(named, list) or not named:
        return ""
    return str(named[0])


def _family_of(text: Json) -> ModuleType | None:
    name = _name_of(text)
    name = SAME.get(name, name)
    if name not in registry.available("models"):
        return None
    family = registry.resolve("models", name)
    if hasattr(family, "PUBLISHED"):
        return family
    return None


def _architecture(published: Json, text: Json, family: ModuleType) -> str:
    """Returns the class of the text half that has the head of the wrapper's class.

    A class of its publisher's own (InternVLChatModel) tells of no head, but the half's may.
    """
    named = _class_of(published)
    own = _class_of(text)
    heads = family.PUBLISHED.heads
    for head, in_half in heads.items():
        if in_half.architecture == named:
            return named
        if in_half.architecture == own and head != "none" and named.endswith("Model"):
            return own
    for ending in sorted(ENDS, key=len, reverse=True):
        if named.endswith(ending) and ENDS[ending] in heads:
            head = ENDS[ending]
            if head == "none" and "projection" in heads:
                head = "projection"
            return heads[head].architecture
    return named
