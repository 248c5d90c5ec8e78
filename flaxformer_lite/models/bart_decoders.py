"""The decoders of BART's families alone, as language models: a table of what differs.

transformers' BartForCausalLM and its like keep the cross-attention in their files, where it
computes nothing; here it is not read, and files are written with zeros in its place.
"""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bart
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.common.family_row import family_row
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    WeightRow,
    add_prefix,
    build_heads,
    weight_rows,
)

BIASES = ("query", "key", "value", "out", "mlp")  # none on the logits
ENCODER = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")


class Model(DecoderModel):
    """BART's decoder; positions count the tokens that the attention mask keeps.

    transformers counts the padding before a prompt too, so that its text depends on the length of
    the other prompts in a batch.
    """

    heads = ("lm",)


class BlenderbotSmallModel(Model):
    norms_tokens_first = True


class ScaledModel(Model):
    scaled_vectors = ("decoder",)


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    ends = weight_rows(
        ("embed_tokens", "token_embed"),
        ("embed_positions.weight", "embed/position/position"),
        ("layernorm_embedding", "embed/norm"),
        ("layer_norm", "decoder/final_norm"),
    )
    layers = add_prefix("layers.{i}", "decoder/layer_{i}", bart_like.layer(cfg))
    return add_prefix("decoder", "", ends + layers)


def read(fields: Fields, *, scaled: bool = False) -> ModelFields:
    return {"embed_power": 0.5 if fields.get("scale_embedding", scaled) else 0.0}


def read_blenderbot_small(fields: Fields) -> ModelFields:
    fields.get("scale_embedding", False)  # a norm follows, and transformers leaves the scale out
    return {}


def read_marian(fields: Fields) -> ModelFields:
    vocab_size = fields.get("vocab_size", 58101)
    decoder_vocab_size = fields.get("decoder_vocab_size", vocab_size)
    if decoder_vocab_size != vocab_size:
        raise ConfigError(
            f"config.json: decoder_vocab_size={decoder_vocab_size!r} is not vocab_size={vocab_size}"
            ", which MarianForCausalLM's logits have; write the decoder's into both."
        )
    return read(fields)


def write(cfg: ModelConfig) -> Json:
    """Writes sizes of an encoder too, as transformers' caches take their number of layers."""
    return {
        "encoder_layers": cfg.decoder_layers,
        "encoder_attention_heads": cfg.num_heads,
        "encoder_ffn_dim": cfg.mlp_dim,
        "scale_embedding": cfg.embed_power == 0.5,
        "is_decoder": True,
        "is_encoder_decoder": False,
    }


def cross_attention(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the tensors of the cross-attention that nothing reads, for strict loaders."""
    zeros_D = np.zeros(cfg.d_model, np.float32)
    zeros_DD = np.zeros((cfg.d_model, cfg.d_model), np.float32)
    tensors: dict[str, np.ndarray] = {}
    for i in range(cfg.decoder_layers):
        layer = f"decoder.layers.{i}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors[f"{layer}.encoder_attn.{projection}.weight"] = zeros_DD
            tensors[f"{layer}.encoder_attn.{projection}.bias"] = zeros_D
        tensors[f"{layer}.encoder_attn_layer_norm.weight"] = zeros_D + 1
        tensors[f"{layer}.encoder_attn_layer_norm.bias"] = zeros_D
    return tensors


def cross_attention_and_positions(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Returns also the table of sinusoidal positions, which files of Pegasus and Marian hold."""
    positions = "decoder.embed_positions.weight"
    return cross_attention(cfg) | {positions: bart_like.sinusoids(cfg)[positions]}


FIELDS = dict(
    d_model="d_model",
    decoder_layers="decoder_layers",
    decoder_attention_heads="num_heads",
    decoder_ffn_dim="mlp_dim",
    max_position_embeddings="max_length",
    activation_function="activation",
    dropout="dropout",
)
LM_HEAD = weight_rows(("lm_head.weight", "lm_head/kernel"))
PUBLISHED = Published(
    model_type="bart",
    prefix="model.",
    names=names,
    heads=build_heads("Bart", lm=LM_HEAD),
    fields=FIELDS,
    harmless=(*bart_like.HARMLESS, *ENCODER, "is_decoder"),
    read=read,
    write=write,
    derived=cross_attention,
    ignored=(*bart.PUBLISHED.ignored, r"decoder\.layers\.\d+\.encoder_attn(_layer_norm)?\..*"),
)


# What differs by the family that a decoder is part of: the class of its models, fields of the
# family's base that it leaves alone, and fields of PUBLISHED.
MODELS = {
    "blenderbot_small": BlenderbotSmallModel,
    "marian": ScaledModel,
    "pegasus": ScaledModel,
}
UNSET = {"blenderbot_small": ("embed_power",)}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "blenderbot_small": dict(read=read_blenderbot_small),
    "marian": dict(
        read=read_marian,
        derived=cross_attention_and_positions,
        harmless=(*PUBLISHED.harmless, "share_encoder_decoder_embeddings"),
    ),
    "pegasus": dict(derived=cross_attention_and_positions),
    "plbart": dict(read=functools.partial(read, scaled=True)),
}


@functools.cache
def family(name: str) -> SimpleNamespace:
    """Returns the family of a decoder, such as `marian_decoder`, made of the one it is part of."""
    whole = name.removesuffix("_decoder")
    file = registry.resolve("models", whole)
    (architecture,) = file.PUBLISHED.relatives
    presets = {}
    for preset, sizes in file.PRESETS.items():
        presets[preset] = omit_fields(sizes, "encoder_layers")
    default = file.config.args[-1]
    base = omit_fields(file.BASE, "decoder_start_token_id", *UNSET.get(whole, ())) | dict(
        bias_at=BIASES
    )
    published = dataclasses.replace(
        PUBLISHED,
        model_type=file.PUBLISHED.model_type,
        defaults=file.PUBLISHED.defaults,
        heads=build_heads(architecture.removesuffix("ForCausalLM"), lm=LM_HEAD),
        **DIFFERENCES.get(whole, {}),
    )
    return family_row(name, base, presets, default, MODELS.get(whole, Model), published)
