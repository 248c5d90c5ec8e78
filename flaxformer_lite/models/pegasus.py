"""Pegasus: a pre-norm encoder-decoder with sinusoidal positions.

Its pretraining task is to generate sentences that were removed from a document.

Reference: Zhang et al. 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive
Summarization", sections 3 and 5 (arXiv:1912.08777).
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bart
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal

BASE = bart_like.BASE | dict(
    vocab_size=96103,
    position=Sinusoidal(layout="halves"),
    norm_at=("in", "final"),
    activation="relu",
    embed_power=0.5,
    pad_token_id=0,
    eos_token_id=None,
    decoder_start_token_id=None,
)
PRESETS = {  # section 5
    "tiny": bart_like.PRESETS["tiny"],
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=16, decoder_layers=16),
}
config = partial(build_config, "pegasus", BASE, PRESETS, "large")


class Model(EncoderDecoderModel):
    trained_bias = False
    scaled_vectors = ("decoder",)


START_ID = 0  # what the decoder reads first if the config names nothing


def read(fields: Fields) -> ModelFields:
    start = fields.get("decoder_start_token_id", START_ID)
    return bart_like.read(fields) | {"decoder_start_token_id": start}


def write(cfg: ModelConfig) -> Json:
    start = cfg.decoder_start_token_id
    if start is None:
        start = cfg.pad_token_id
    return bart_like.write(cfg) | {"decoder_start_token_id": start}


PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    model_type="pegasus",
    defaults=dict(
        vocab_size=50265, encoder_layers=12, decoder_layers=12, activation_function="gelu"
    ),
    heads=bart_like.heads("Pegasus"),
    fields=bart_like.FIELDS,
    read=read,
    write=write,
    derived=bart_like.sinusoids,
    relatives={"PegasusForCausalLM": "pegasus_decoder"},
)
