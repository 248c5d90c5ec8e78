"""Marian's decoder alone, as a language model."""

import dataclasses
from functools import partial

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import bart_decoder, marian
from flaxformer_lite.models.common import bart_decoder_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import Fields, ModelFields, build_heads

BASE = bart_decoder_like.BASE | dict(
    vocab_size=58101,
    max_length=512,
    position=marian.BASE["position"],
    norm_at=("out",),
    activation="silu",
    embed_power=0.5,
    pad_token_id=58100,
    eos_token_id=None,
)
PRESETS = {
    "tiny": bart_decoder_like.PRESETS["tiny"],
    "base": dict(d_model=512, num_heads=8, mlp_dim=2048, decoder_layers=6),
}
config = partial(build, "marian_decoder", BASE, PRESETS, "base")
Model = bart_decoder_like.Model


def read(fields: Fields) -> ModelFields:
    vocab_size = fields.get("vocab_size", 58101)
    decoder_vocab_size = fields.get("decoder_vocab_size", vocab_size)
    if decoder_vocab_size != vocab_size:
        raise ConfigError(
            f"config.json: decoder_vocab_size={decoder_vocab_size!r} is not vocab_size={vocab_size}"
            ", which MarianForCausalLM's logits have; write the decoder's into both."
        )
    return bart_decoder_like.read(fields)


PUBLISHED = dataclasses.replace(
    bart_decoder.PUBLISHED,
    model_type="marian",
    defaults=marian.DEFAULTS,
    heads=build_heads("Marian", lm=bart_decoder_like.LM_HEAD),
    read=read,
    derived=bart_decoder_like.cross_attention_and_positions,
    harmless=(*bart_decoder.PUBLISHED.harmless, "share_encoder_decoder_embeddings"),
)
