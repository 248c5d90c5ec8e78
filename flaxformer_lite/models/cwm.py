"""CWM: Llama 3 with sliding windows in three of four layers.

Reference: FAIR CodeGen Team, "CWM: An Open-Weights LLM for Research on Code Generation with World
Models" (2025), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import ministral
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, read_windows
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_unscaled
from flaxformer_lite.nn.positions.rope import Rope

WINDOW_TOKENS = 8192
SCALED = Rope(
    base=1000000.0,
    scaling="llama3",
    factor=16.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
BASE = llama_like.BASE | dict(
    vocab_size=128256,
    max_length=131072,
    head_dim=128,
    position=SCALED,
    windows=(0, WINDOW_TOKENS, WINDOW_TOKENS, WINDOW_TOKENS),
)
PRESETS = {
    "tiny": llama_like.TINY | dict(head_dim=32, windows=(0, 64)),
    "32b": dict(d_model=6144, num_heads=48, num_kv_heads=8, mlp_dim=21504, decoder_layers=64),
}
config = partial(build_config, "cwm", BASE, PRESETS, "32b")
Model = llama_like.LanguageModel


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 64)
    window = fields.nullable("sliding_window", WINDOW_TOKENS)
    windows = read_windows(fields, layers, lambda i: i % 4 != 0 and window > 0, window)
    return llama_like.read_sizes(fields, kv_heads=8, head_dim=128) | {
        "position": read_rope(fields, usual=SCALED),
        "windows": windows,
    }


def write(cfg: ModelConfig) -> Json:
    return ministral.write(cfg) | write_unscaled(cfg.position)


PUBLISHED = llama_like.published(
    "cwm",
    defaults=dict(rope_theta=1000000.0, rms_norm_eps=1e-5),
    heads=llama_like.heads("Cwm", only=Model.heads),
    fixed={"mlp_bias": False},
    read=read,
    write=write,
)
