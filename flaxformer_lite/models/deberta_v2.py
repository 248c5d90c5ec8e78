"""DeBERTa-v2 and v3: disentangled attention with logarithmic buckets of distance.

The layers share a table of positions, normalized, and project it by their own query and key; the
largest models have a convolution beside the first layer.

Reference: He, Liu, Gao, Chen, "DeBERTa" (2021), section 3 (arXiv:2006.03654), and the published
code of version 2; He, Gao, Chen, "DeBERTaV3" (2021), section 3 (arXiv:2111.09543).
"""

import dataclasses

import flax.linen as nn
import jax

from flaxformer_lite.config import ConfigError, Execution, LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import deberta, electra
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import ACTIVATION_NAMES, Fields, ModelFields, activation_of
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import (
    Head,
    Published,
    add_prefix,
    attention_rows,
    build_heads,
    weight_rows,
)
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.mixers.convolution import ConvolutionConfig
from flaxformer_lite.nn.mixers.disentangled import DisentangledConfig
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.norms import Norm

BASE: ModelFields = deberta.BASE | dict(
    vocab_size=128100,
    mixer=DisentangledConfig(buckets=256, share_key=True, norm_table=True, norm_eps=1e-7),
    bias_at=("query", "key", "value", "out", "mlp", "logits"),
)
TINY_MIXER = dataclasses.replace(BASE["mixer"], buckets=32, max_distance=128)
CONVOLUTION = ConvolutionConfig(width=3, activation="gelu")
PRESETS = {  # v3: He et al. 2021b, table 2, and the published configs
    "tiny": bert_like.PRESETS["tiny"] | dict(mixer=TINY_MIXER),
    "xlarge": dict(d_model=1536, num_heads=24, mlp_dim=6144, encoder_layers=24),
    "xxlarge": dict(d_model=1536, num_heads=24, mlp_dim=6144, encoder_layers=48),
    "v3_xsmall": dict(d_model=384, num_heads=6, mlp_dim=1536, encoder_layers=12),
    "v3_small": dict(d_model=768, num_heads=12, mlp_dim=3072, encoder_layers=6),
    "v3_base": bert_like.PRESETS["base"],
    "v3_large": bert_like.PRESETS["large"],
    "mdeberta_v3_base": bert_like.PRESETS["base"] | dict(vocab_size=251000),
}


def first_layer(layers: int, extra_branch: ConvolutionConfig) -> tuple[LayerKind, ...]:
    """Builds the kinds of layer; the first one has a convolution beside it."""
    return (LayerKind(extra_branch=extra_branch), *(LayerKind() for _ in range(layers - 1)))


def config(preset: str = "v3_base", **overrides) -> ModelConfig:
    """Builds a config with the published sizes; keyword arguments override it."""
    if preset in ("xlarge", "xxlarge"):
        layers = overrides.get("encoder_layers", PRESETS[preset]["encoder_layers"])
        overrides = {"pattern": first_layer(layers, CONVOLUTION)} | overrides
    return build_config("deberta_v2", BASE, PRESETS, preset, **overrides)


class Discriminator(nn.Module):
    """One logit per token, positive if the token was replaced; it reads the first token too.

    Reference: He et al. 2021b, section 3.1, and the published code (`LMMaskPredictionHead`).
    """

    cfg: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        cfg = self.cfg
        run = self.execution
        sizes = {"D": cfg.d_model, "A": cfg.d_model, "C": 1}
        x_BTD = Norm(cfg.norm_config, run, name="norm")(x_BTD[:, :1] + x_BTD)
        dense = Einsum(
            "BTD,DA->BTA", sizes, bias=True, initial=cfg.initial, execution=run, name="dense"
        )
        h_BTA = ACTIVATIONS[cfg.activation](dense(x_BTD))
        return Einsum(
            "BTA,AC->BTC", sizes, bias=True, initial=cfg.initial, execution=run, name="output"
        )(h_BTA)[..., 0]


class Model(electra.Model):
    """DeBERTa-v2 with ELECTRA's heads; `pretraining` is the one that detects replaced tokens.

    Transformers has no class for that head; it reads such a file as one of its others.
    """

    heads = ("none", "masked_lm", "pretraining", *bert_like.CLASSIFIERS)
    vocab_heads = ("masked_lm",)
    masked_lm_activation = ""
    zero_padding = True
    detector = Discriminator


NAMES = attention_rows(
    "self.query_proj", "self.key_proj", "self.value_proj", "output.dense"
) + weight_rows(("self.pos_key_proj", "position_key"), ("self.pos_query_proj", "position_query"))
BODY = (
    *deberta.EMBEDDINGS,
    *weight_rows(
        ("encoder.LayerNorm.weight", "encoder/position/norm_scale"),
        ("encoder.LayerNorm.bias", "encoder/position/norm_bias"),
        ("encoder.conv.conv.weight", "encoder/layer_{i}/conv/filters"),
        ("encoder.conv.conv.bias", "encoder/layer_{i}/conv/bias"),
        ("encoder.conv.LayerNorm", "encoder/layer_{i}/conv_out_norm"),
    ),
    *add_prefix("encoder.layer.{i}", "encoder/layer_{i}", deberta.LAYER),
    *add_prefix("encoder.layer.{i}.attention", "encoder/layer_{i}/attention", NAMES),
)
DETECTION = weight_rows(
    ("mask_predictions.LayerNorm", "discriminator/norm"),
    ("mask_predictions.dense", "discriminator/dense"),
    ("mask_predictions.classifier", "discriminator/output"),
)


def read(fields: Fields) -> ModelFields:
    fields.require("conv_groups", 1)
    width = fields.get("hidden_size", 1536)
    heads = fields.get("num_attention_heads", 24)
    fields.require("attention_head_size", width // heads)
    values = deberta.read_input(fields)
    filters = fields.get("conv_kernel_size", 0)
    if filters > 0:
        activation = activation_of("conv_act", fields.get("conv_act", "tanh"))
        convolution = ConvolutionConfig(width=filters, activation=activation)
        values["pattern"] = first_layer(fields.get("num_hidden_layers", 24), convolution)
    terms = deberta.read_terms(fields)
    normed = "layer_norm" in fields.get("norm_rel_ebd", "none").lower().replace(" ", "").split("|")
    if normed and not terms:
        raise ConfigError(
            "config.json: norm_rel_ebd='layer_norm' is of relative attention, which the file does"
            " not have; set it to 'none'."
        )
    of_mixer = dict(
        terms=terms,
        buckets=max(0, fields.get("position_buckets", -1)),
        max_distance=max(0, fields.get("max_relative_positions", -1)),
        share_key=fields.get("share_att_key", False),
        norm_table=normed,
        norm_eps=fields.get("layer_norm_eps", 1e-7),
    )
    return values | {"mixer": DisentangledConfig(**of_mixer) if terms else None}


def write(cfg: ModelConfig) -> Json:
    written = deberta.write_input(cfg)
    mixer = cfg.mixer
    if isinstance(mixer, DisentangledConfig):
        written["position_buckets"] = mixer.buckets or -1
        written["share_att_key"] = mixer.share_key
        written["norm_rel_ebd"] = "layer_norm" if mixer.norm_table else "none"
    extra_branch = cfg.kinds[0].extra_branch
    if isinstance(extra_branch, ConvolutionConfig):
        written["conv_kernel_size"] = extra_branch.width
        written["conv_act"] = ACTIVATION_NAMES[extra_branch.activation][0]
    return written


PUBLISHED = Published(
    model_type="deberta-v2",
    prefix="deberta.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "DebertaV2",
        **deberta.HEADS,
        multiple_choice=deberta.POOLER + bert_like.CLASSIFIER,
        pretraining=Head("DebertaV2ForPreTraining", DETECTION),
    ),
    fields=bert_like.FIELDS,
    defaults=dict(
        hidden_size=1536,
        num_hidden_layers=24,
        num_attention_heads=24,
        intermediate_size=6144,
    ),
    fixed=deberta.FIXED,
    harmless=deberta.HARMLESS,
    read=read,
    write=write,
    duplicates={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=deberta.PUBLISHED.ignored,
    spellings=deberta.SPELLINGS,
)
