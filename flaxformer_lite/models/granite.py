"""Granite: Llama with multipliers for embeddings, residual branches, attention and logits.

With these, hyperparameters that are tuned on a small model also suit a large one.

Reference: IBM Granite Team, "Granite 3.0 Language Models" (2024), section 2; Yang et al., "Tensor
Programs V" (2022, arXiv:2203.03466).
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, find_inverse
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=49155,
    max_length=4096,
    embed_multiplier=12.0,
    residual_multiplier=0.22,
    attention_scale=0.015625,
    tie_embeddings=True,
)
PRESETS = {  # table 2
    "tiny": llama_like.TINY | dict(attention_scale=1 / 32),
    "2b": dict(
        d_model=2048,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=8192,
        decoder_layers=40,
        logit_multiplier=1 / 8,
    ),
    "8b": dict(
        d_model=4096,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=12800,
        decoder_layers=40,
        logit_multiplier=1 / 16,
        attention_scale=0.0078125,
        position=Rope(),
    ),
}
config = partial(build_config, "granite", BASE, PRESETS, "2b")


class Model(DecoderModel):
    heads = ("lm", "none")
    scaled_vectors = ("decoder",)


FIELDS = llama_like.FIELDS | dict(
    embedding_multiplier="embed_multiplier",
    residual_multiplier="residual_multiplier",
)


def read(fields: Fields) -> ModelFields:
    return llama_like.read(fields) | {
        "embed_multiplier": fields.get("embedding_multiplier", 1.0),
        "residual_multiplier": fields.get("residual_multiplier", 1.0),
        "attention_scale": fields.get("attention_multiplier", 1.0),
        "logit_multiplier": 1 / fields.get("logits_scaling", 1.0),
    }


def write(cfg: ModelConfig) -> Json:
    return llama_like.write(cfg) | {
        "attention_multiplier": cfg.scale,
        "logits_scaling": find_inverse(cfg.logit_multiplier),
    }


PUBLISHED = llama_like.published(
    "granite",
    defaults=llama_like.DEFAULTS | dict(vocab_size=32000, tie_word_embeddings=False),
    heads=llama_like.heads("Granite", only=Model.heads),
    fields=FIELDS,
    read=read,
    write=write,
)
