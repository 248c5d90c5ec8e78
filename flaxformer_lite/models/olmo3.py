"""OLMo 3: OLMo 2 with sliding windows in three of four layers.

Positions are scaled to longer text in the layers without a window only.

Reference: OLMo Team, "Olmo 3" (2025), section 3.
"""

from functools import partial

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import olmo2
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, read_windows, write_windows
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope_of, slide_layers, write_ropes

WINDOW_TOKENS = 4096
BASE = olmo2.BASE | dict(
    vocab_size=100278,
    max_length=65536,
    pattern=(*[LayerKind(window=WINDOW_TOKENS)] * 3, LayerKind(window=0)),
)
PRESETS = {
    "tiny": dict(
        d_model=128,
        num_heads=4,
        mlp_dim=344,
        decoder_layers=4,
        pattern=(LayerKind(window=64), LayerKind(window=0)),
    ),
    "7b": dict(d_model=4096, num_heads=32, mlp_dim=11008, decoder_layers=32),
    "32b": dict(d_model=5120, num_heads=40, num_kv_heads=8, mlp_dim=27648, decoder_layers=64),
}
config = partial(build_config, "olmo3", BASE, PRESETS, "7b")
Model = olmo2.Model
FULL = "full_attention"
SLIDING = "sliding_attention"


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 32)
    window = fields.nullable("sliding_window", WINDOW_TOKENS)
    windows = read_windows(fields, layers, lambda i: (i + 1) % 4 != 0, window)
    base = fields.get("rope_theta", 500000.0)
    full = read_rope_of(fields, FULL, base)
    local = read_rope_of(fields, SLIDING, base, scaled=False)
    sliding = local if local != full else None
    return olmo2.read_sizes(fields) | {"position": full, "pattern": slide_layers(windows, sliding)}


def write(cfg: ModelConfig) -> Json:
    local = [kind for kind in cfg.kinds if kind.window]
    position = local[0].position if local else None
    ropes = {FULL: cfg.position, SLIDING: position or cfg.position}
    return olmo2.write(cfg) | write_ropes(ropes) | write_windows(cfg, WINDOW_TOKENS)


PUBLISHED = llama_like.published(
    "olmo3",
    olmo2.BODY,
    defaults=dict(
        vocab_size=50304, rms_norm_eps=1e-5, max_position_embeddings=2048, pad_token_id=1
    ),
    heads=llama_like.heads("Olmo3", only=Model.heads),
    read=read,
    write=write,
)
