"""The decoder of ModernBERT's recipe (Ettin): the same layers, with a causal mask.

A local layer sees 64 tokens with the token itself, where the encoder sees 64 to each side.

Reference: Weller et al., "Seq vs Seq: An Open Suite of Paired Encoders and Decoders" (2025),
section 3.
"""

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import modernbert
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    add_prefix,
    attention_rows,
    build_heads,
    weight_rows,
)

BASE = modernbert.BASE | dict(head="lm")
PRESETS = {}
for _name, _sizes in modernbert.PRESETS.items():
    PRESETS[_name] = {field.replace("encoder", "decoder"): value for field, value in _sizes.items()}


class Model(DecoderModel):
    heads = ("none", "lm", "sequence_classification")
    head_modules = ("transform",)
    frozen_padding = ("tokens",)

    def setup(self):
        super().setup()
        self.transform = modernbert.transform(self.cfg, self.execution)

    def project(self, x_BTD):
        return self.lm_head(self.transform(x_BTD), self.token_embed.embedding)

    def classify(self, x_BD):
        return self.classifier(self.transform(x_BD))


def config(preset: str = "base", **overrides) -> ModelConfig:
    """Builds a config with the published sizes.

    Keyword arguments override it, and the number of layers gives their kinds.
    """
    layers = overrides.get("decoder_layers", PRESETS.get(preset, {}).get("decoder_layers", 0))
    kinds = {"pattern": modernbert.alternating(layers, modernbert.WINDOW_TOKENS // 2)}
    return build_config("modernbert_decoder", BASE, PRESETS, preset, **kinds | overrides)


LAYER = (
    *modernbert.NORMS_AND_MLP,
    *add_prefix("attn", "attention", attention_rows("q_proj", "k_proj", "v_proj", "Wo")),
)
BODY = (
    *modernbert.EMBEDDINGS,
    *weight_rows(("final_norm", "decoder/final_norm")),
    *add_prefix("layers.{i}", "decoder/layer_{i}", LAYER),
)
TRANSFORM = add_prefix("lm_head", "transform", modernbert.TRANSFORM_PARTS)


def read(fields: Fields) -> ModelFields:
    return modernbert.read_layers(fields, 0)


def write(cfg: ModelConfig) -> Json:
    return modernbert.write_layers(cfg, 0)


PUBLISHED = Published(
    model_type="modernbert-decoder",
    defaults=dict(pad_token_id=50283),
    prefix="model.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "ModernBertDecoder",
        none=(),
        lm=TRANSFORM + modernbert.VOCABULARY,
        sequence_classification=modernbert.CLASSIFIER,
    ),
    fields=modernbert.FIELDS | {"num_hidden_layers": "decoder_layers"},
    fixed={"classifier_activation": "gelu"},
    harmless=(*modernbert.HARMLESS, "sliding_window"),  # follows from local_attention
    read=read,
    write=write,
)
