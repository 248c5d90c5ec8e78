"""Pegasus: a pre-norm encoder-decoder with sinusoidal positions.

Its pretraining task is to generate sentences that were removed from a document.

Reference: Zhang et al. 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive
Summarization", sections 3 and 5 (arXiv:1912.08777).
"""

import dataclasses
from functools import partial

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bart
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel
from flaxformer_lite.models.weight_map import Fields, ModelFields
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal

BASE = bart.BASE | dict(
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
    "tiny": bart.PRESETS["tiny"],
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=16, decoder_layers=16),
}
config = partial(build, "pegasus", BASE, PRESETS, "large")


class Model(EncoderDecoderModel):
    trained_bias = False


def sinusoids(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Computes the fixed position tables of both stacks, which published files hold.

    WeightRow t of a table is [sin(t w_0), sin(t w_1), ..., cos(t w_0), ...], w_p = 10000^(-2p / D).

    Returns:
      Arrays [max_length, D] by their published names.
    """
    angles_TP = (
        np.arange(cfg.max_length)[:, None]
        * 10000.0 ** (-np.arange(0, cfg.d_model, 2) / cfg.d_model)[None]
    )
    table = np.concatenate([np.sin(angles_TP), np.cos(angles_TP)], axis=1)
    return {f"{side}.embed_positions.weight": table for side in ("encoder", "decoder")}


START = 0  # what the decoder reads first if the config names nothing


def read(fields: Fields) -> ModelFields:
    start = fields.get("decoder_start_token_id", START)
    return bart.read(fields) | {"decoder_start_token_id": start}


def write(cfg: ModelConfig) -> Json:
    start = cfg.decoder_start_token_id
    if start is None:
        start = cfg.pad_token_id
    return bart.write(cfg) | {"decoder_start_token_id": start}


PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    model_type="pegasus",
    defaults=dict(
        vocab_size=50265, encoder_layers=12, decoder_layers=12, activation_function="gelu"
    ),
    heads=bart.heads("Pegasus"),
    fields=bart.FIELDS,
    read=read,
    write=write,
    derived=sinusoids,
    relatives={"PegasusForCausalLM": "pegasus_decoder"},
)
