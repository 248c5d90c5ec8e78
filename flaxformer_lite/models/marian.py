"""Marian: the original Transformer as trained for translation between hundreds of language pairs.

Reference: Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++" (2018);
Tiedemann and Thottingal, "OPUS-MT" (2020).
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
from flaxformer_lite.models.weight_map import Head
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal

BASE = bart_like.BASE | dict(
    vocab_size=58101,
    max_length=512,
    position=Sinusoidal(layout="halves"),
    norm_at=("out",),
    activation="silu",
    embed_power=0.5,
    pad_token_id=58100,
    eos_token_id=None,
    decoder_start_token_id=None,
)
PRESETS = {  # OPUS-MT's size
    "tiny": bart_like.PRESETS["tiny"],
    "base": dict(d_model=512, num_heads=8, mlp_dim=2048, encoder_layers=6, decoder_layers=6),
}
config = partial(build_config, "marian", BASE, PRESETS, "base")


class Model(EncoderDecoderModel):
    trained_bias = False
    scaled_vectors = ("decoder",)


def read(fields: Fields) -> ModelFields:
    """Reads the decoder's vocabulary: some language pairs have one for each side."""
    shared = fields.get("share_encoder_decoder_embeddings", True)
    decoder_vocab_size = fields.get("decoder_vocab_size", fields.get("vocab_size", 58101))
    return bart_like.read(fields) | {
        "decoder_vocab_size": 0 if shared else decoder_vocab_size,
        "decoder_start_token_id": fields.get("decoder_start_token_id", START_ID),
    }


def write(cfg: ModelConfig) -> Json:
    written = bart_like.write(cfg)
    # Always written, as transformers' default lies outside most vocabularies.
    start = cfg.decoder_start_token_id
    written["decoder_start_token_id"] = cfg.pad_token_id if start is None else start
    written["share_encoder_decoder_embeddings"] = not cfg.decoder_vocab_size
    if cfg.decoder_vocab_size:
        written["decoder_vocab_size"] = cfg.decoder_vocab_size
    return written


START_ID = 58100  # what the decoder reads first if the config names nothing
DEFAULTS = dict(
    d_model=1024,
    encoder_layers=12,
    decoder_layers=12,
    encoder_attention_heads=16,
    encoder_ffn_dim=4096,
    max_position_embeddings=1024,
    activation_function="gelu",
)
PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    model_type="marian",
    defaults=DEFAULTS,
    heads={"lm": Head("MarianMTModel", bart_like.LM_HEAD), "none": Head("MarianModel")},
    fields=bart_like.FIELDS,
    read=read,
    write=write,
    # transformers asks for the tables in a file of the bare model alone
    derived=lambda cfg: bart_like.sinusoids(cfg) if cfg.head == "none" else {},
    ignored=(r"(encoder|decoder)\.(version|embed_positions\.weight)",),
    relatives={"MarianForCausalLM": "marian_decoder"},
)
