"""EXAONE 4: norms after attention and feed-forward, and on each head's queries and keys.

The large model has sliding windows with rotary positions in three of four layers, and no positions
in the fourth.

Reference: LG AI Research, "EXAONE 4.0: Unified Large Language Models Integrating Non-reasoning and
Reasoning Modes" (2025), section 2.
"""

from functools import partial

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import olmo2
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    read_windows,
    write_period,
    write_windows,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.rope import Rope

WINDOW_TOKENS = 4096
BASE = llama_like.BASE | dict(
    vocab_size=102400,
    max_length=131072,
    norm_at=("branch", "final"),
    qk_norm="rms",
    position=Rope(base=1000000.0),
    pattern=(LayerKind(window=0),),
)
PRESETS = {  # table 1
    "tiny": llama_like.TINY,
    "1.2b": dict(
        d_model=2048,
        num_heads=32,
        num_kv_heads=8,
        mlp_dim=4096,
        decoder_layers=30,
        tie_embeddings=True,
    ),
    "32b": dict(
        d_model=5120,
        num_heads=40,
        num_kv_heads=8,
        mlp_dim=27392,
        decoder_layers=64,
        pattern=llama_like.alternate_positions(WINDOW_TOKENS, WINDOW_TOKENS, WINDOW_TOKENS, 0),
    ),
}
config = partial(build_config, "exaone4", BASE, PRESETS, "1.2b")
Model = llama_like.Model


def read(fields: Fields) -> ModelFields:
    """Reads windows: without any, all layers have positions."""
    layers = fields.get("num_hidden_layers", 32)
    window = fields.nullable("sliding_window", WINDOW_TOKENS)
    every = fields.get("sliding_window_pattern", 4, kind=object)
    if not isinstance(every, int) or not window:
        every = 1
    windows = read_windows(fields, layers, lambda i: (i + 1) % max(every, 1) != 0, window)
    hybrid = window > 0
    pattern = llama_like.alternate_positions(*windows) if hybrid else (LayerKind(window=0),)
    return llama_like.read_heads(fields, kv_heads=32) | {
        "pattern": pattern,
    }


def write(cfg: ModelConfig) -> Json:
    hybrid = any(kind.window or kind.position is not None for kind in cfg.kinds)
    fields = llama_like.write_heads(cfg)
    if not hybrid:
        return fields | write_windows(cfg, None) | {"sliding_window_pattern": None}
    # The published ones spell the period with a letter for each layer, such as LLLG.
    period = write_period(cfg).get("sliding_window_pattern", cfg.decoder_layers)
    letters = "L" * (period - 1) + "G"
    return fields | write_windows(cfg, WINDOW_TOKENS) | {"sliding_window_pattern": letters}


PUBLISHED = llama_like.published(
    "exaone4",
    olmo2.BODY,
    defaults=dict(
        rms_norm_eps=1e-5,
        hidden_size=4096,
        intermediate_size=16384,
        num_hidden_layers=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    ),
    heads=llama_like.heads("Exaone4"),
    read=read,
    write=write,
)
