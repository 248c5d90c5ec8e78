"""SmolLM3: Llama with grouped heads, in which every fourth layer has no positions.

Reference: Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner" (2025); Yang et al.,
"Rope to Nope and Back Again" (2025, arXiv:2501.18795), for layers without positions.
"""

from functools import partial

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    largest_window,
    read_windows,
    repeat_pattern,
    shortest_pattern,
    write_windows,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.nope import Nope
from flaxformer_lite.nn.positions.rope import Rope

NO_POSITION_LAYER_PERIOD = 4  # the last of so many layers has no positions
BASE = llama_like.BASE | dict(
    vocab_size=128256,
    max_length=65536,
    norm_eps=1e-6,
    position=Rope(base=5000000.0),
    tie_embeddings=True,
    pattern=(*[LayerKind()] * (NO_POSITION_LAYER_PERIOD - 1), LayerKind(position=Nope())),
)
PRESETS = {
    "tiny": llama_like.TINY | dict(pattern=(LayerKind(), LayerKind(position=Nope()))),
    "3b": dict(d_model=2048, num_heads=16, num_kv_heads=4, mlp_dim=11008, decoder_layers=36),
}
config = partial(build_config, "smollm3", BASE, PRESETS, "3b")
Model = llama_like.Model


def read(fields: Fields) -> ModelFields:
    """Reads which layers rotate: 1 in `no_rope_layers` means that one does.

    Layers without positions slide if windows are on.
    """
    layers = fields.get("num_hidden_layers", 36)
    every = fields.size("no_rope_layer_interval", NO_POSITION_LAYER_PERIOD)
    rotates = fields.get("no_rope_layers", [int((i + 1) % every != 0) for i in range(layers)])
    on = fields.get("use_sliding_window", False)
    window = fields.get("sliding_window", 0)
    slides = [on and window > 0 and not rotates[i] for i in range(layers)]
    windows = read_windows(fields, layers, slides.__getitem__, window if on else 0)
    kinds = []
    for i, window in enumerate(repeat_pattern(windows, layers)):
        kinds.append(LayerKind(window=window, position=None if rotates[i] else Nope()))
    return llama_like.read(fields) | {
        "num_kv_heads": fields.get("num_key_value_heads", 4),
        "pattern": shortest_pattern(kinds),
    }


def write(cfg: ModelConfig) -> Json:
    kinds = repeat_pattern(cfg.kinds, cfg.decoder_layers)
    return llama_like.write(cfg) | {
        "no_rope_layers": [int(kind.position is None) for kind in kinds],
        "use_sliding_window": largest_window(cfg) > 0,
        **write_windows(cfg, None),
    }


PUBLISHED = llama_like.published(
    "smollm3",
    defaults=dict(max_position_embeddings=32768, rope_theta=2000000.0, pad_token_id=128004),
    heads=llama_like.heads("SmolLM3"),
    harmless=("max_window_layers",),
    read=read,
    write=write,
)
