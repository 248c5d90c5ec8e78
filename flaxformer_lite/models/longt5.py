"""LongT5: T5 1.1 whose encoder attends to nearby tokens and to sums of tokens.

Reference: Guo et al., "LongT5: Efficient Text-To-Text Transformer for Long Sequences" (2022).
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import mt5, t5, weight_map
from flaxformer_lite.models.common import t5_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, WeightRow, add_prefix, weight_rows
from flaxformer_lite.nn.mixers.local_global import LocalGlobalConfig

BASE = t5_like.BASE | t5_like.V1_1 | dict(mixer=LocalGlobalConfig())
PRESETS = {name: mt5.PRESETS[name] for name in ("tiny", "base", "large", "xl")}
config = partial(build_config, "longt5", BASE, PRESETS, "base")


class Model(t5_like.Model):
    heads = ("lm", "none", "encoder")


LOCAL = "LocalSelfAttention"
GLOBAL = "TransientGlobalSelfAttention"


def mixer_of(cfg: ModelConfig) -> LocalGlobalConfig:
    """Returns the record of the encoder's attention.

    Raises:
      ConfigError: it is another.
    """
    if not isinstance(cfg.mixer, LocalGlobalConfig):
        raise ConfigError(
            "mixer: a published LongT5 has mixer.name=local_global; keep checkpoints of this model"
            " in our own format."
        )
    return cfg.mixer


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    """Returns T5's rows with the table of positions of sums and their norms."""
    if not mixer_of(cfg).global_block:
        return t5_like.names(cfg, LOCAL)
    table = f"encoder.block.0.layer.0.{GLOBAL}.global_relative_attention_bias.weight"
    norm = weight_rows((f"layer.0.{GLOBAL}.global_input_layer_norm", "attention/global_norm"))
    return (
        *t5_like.names(cfg, GLOBAL),
        *weight_rows((table, "encoder/global_position/relative")),
        *add_prefix("encoder.block.{i}", "encoder/layer_{i}", norm),
    )


def read(fields: Fields) -> ModelFields:
    """Reads T5's fields and the kind of attention of the encoder.

    The decoder's output is scaled where the table is tied, whatever `scale_decoder_outputs` says.
    """
    kind = fields.get("encoder_attention_type", "local")
    if kind not in ("local", "transient-global"):
        raise ConfigError(
            f"config.json: encoder_attention_type={kind!r}: must be local or transient-global."
        )
    size = fields.size("global_block_size", 16)
    mixer = LocalGlobalConfig(
        radius=fields.size("local_radius", 127),
        global_block=size if kind == "transient-global" else 0,
        norm_eps=fields.get("layer_norm_epsilon", 1e-6),
    )
    tied = fields.get("tie_word_embeddings", True)
    return t5_like.read_sizes(fields) | {"logit_power": -0.5 if tied else 0.0, "mixer": mixer}


def write(cfg: ModelConfig) -> Json:
    mixer = mixer_of(cfg)
    written = t5_like.write_sizes(cfg) | {"local_radius": mixer.radius}
    if not mixer.global_block:
        return written | {"encoder_attention_type": "local"}
    return written | {
        "encoder_attention_type": "transient-global",
        "global_block_size": mixer.global_block,
    }


spelled: dict[str, Head] = weight_map.build_heads("LongT5", none=(), encoder=())
PUBLISHED = dataclasses.replace(
    t5.PUBLISHED,
    model_type="longt5",
    names=names,
    heads={"lm": Head("LongT5ForConditionalGeneration"), **spelled},
    defaults=dict(d_model=512, d_ff=2048, num_layers=6, num_heads=8, tie_word_embeddings=True),
    read=read,
    write=write,
)
