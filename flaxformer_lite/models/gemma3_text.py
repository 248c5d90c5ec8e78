"""Gemma 3: Gemma 2 with norms on queries and keys in place of the cap on scores.

Five of six layers have a window, and positions of another base. EmbeddingGemma, which sees both
ways, is embedding_gemma.py.

Reference: Gemma Team, "Gemma 3 Technical Report" (2025), section 2.
"""

from functools import partial

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import gemma, gemma2
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    layer_types,
    read_windows,
    write_period,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope_of, slide_layers, write_ropes
from flaxformer_lite.models.weight_map import WeightRow, add_prefix, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

LOCAL = Rope(base=10000.0)
FULL_LAYER_PERIOD = 6  # the last of so many layers sees everything


def pattern(*windows: int) -> tuple[LayerKind, ...]:
    """Returns the kinds of layers with these windows; 0 sees everything."""
    return slide_layers(windows, LOCAL)


BASE = gemma.BASE | dict(
    vocab_size=262208,
    max_length=131072,
    norm_at=("in", "branch", "final"),
    qk_norm="rms_offset",
    attention_scale=256**-0.5,
    position=Rope(base=1000000.0, scaling="linear", factor=8.0),
    pattern=pattern(*[1024] * (FULL_LAYER_PERIOD - 1), 0),
)
SMALL = dict(vocab_size=262144, max_length=32768, position=Rope(base=1000000.0))
PRESETS = {  # table 1
    "tiny": llama_like.TINY
    | dict(head_dim=48, position=Rope(base=1000000.0), pattern=pattern(64, 0)),
    "270m": SMALL
    | dict(
        d_model=640,
        num_heads=4,
        num_kv_heads=1,
        mlp_dim=2048,
        decoder_layers=18,
        pattern=pattern(*[512] * (FULL_LAYER_PERIOD - 1), 0),
    ),
    "1b": SMALL
    | dict(
        d_model=1152,
        num_heads=4,
        num_kv_heads=1,
        mlp_dim=6912,
        decoder_layers=26,
        pattern=pattern(*[512] * (FULL_LAYER_PERIOD - 1), 0),
    ),
    "4b": dict(d_model=2560, num_heads=8, num_kv_heads=4, mlp_dim=10240, decoder_layers=34),
    "12b": dict(d_model=3840, num_heads=16, num_kv_heads=8, mlp_dim=15360, decoder_layers=48),
}
config = partial(build_config, "gemma3_text", BASE, PRESETS, "4b")
Model = llama_like.SequenceModel

LAYER = gemma2.LAYER + llama_like.QK_NORMS
FULL = "full_attention"
SLIDING = "sliding_attention"


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    side = "encoder" if cfg.encoder_layers else "decoder"
    ends = weight_rows(("embed_tokens", "token_embed"), ("norm", f"{side}/final_norm"))
    return ends + add_prefix("layers.{i}", f"{side}/layer_{{i}}", LAYER)


def read(fields: Fields) -> ModelFields:
    """Reads windows and bases by type of layer.

    A model that sees both ways is an encoder, whose window reaches to each side.
    """
    layers = fields.get("num_hidden_layers", 26)
    both_ways = fields.get("use_bidirectional_attention", False)
    window = fields.size("sliding_window", 4096)
    if both_ways:
        window = window // 2 + 1
    every = fields.size(
        "sliding_window_pattern", fields.size("_sliding_window_pattern", FULL_LAYER_PERIOD)
    )
    windows = read_windows(fields, layers, lambda i: (i + 1) % every != 0, window)
    full = read_rope_of(fields, FULL, fields.get("rope_theta", 1000000.0))
    base = fields.get("rope_local_base_freq", 10000.0)
    local = read_rope_of(fields, SLIDING, base, scaled=False)
    options = llama_like.read_sizes(fields, kv_heads=4, head_dim=256) | {
        "position": full,
        "pattern": slide_layers(windows, local),
        "attention_scale": fields.size("query_pre_attn_scalar", 256.0) ** -0.5,
        "logit_softcap": fields.get("final_logit_softcapping", 0.0),
    }
    if both_ways:
        options |= {"family": "embedding_gemma", "encoder_layers": layers, "decoder_layers": 0}
    return options


def write(cfg: ModelConfig) -> Json:
    window = 4096
    base = LOCAL
    local = [kind for kind in cfg.kinds if kind.window]
    if local:
        window = local[0].window or window
        base = local[0].position
    return (
        llama_like.write_heads(cfg)
        | gemma.write_activation(cfg, "hidden_activation")
        | write_ropes({FULL: cfg.position, SLIDING: base})
        | {
            "rope_local_base_freq": base.base,
            "sliding_window": 2 * (window - 1) if cfg.encoder_layers else window,
            "layer_types": layer_types(cfg),
            **write_period(cfg),
            **gemma.write_scale(cfg),
            "final_logit_softcapping": cfg.logit_softcap or None,
            "use_bidirectional_attention": bool(cfg.encoder_layers),
            "num_hidden_layers": cfg.encoder_layers + cfg.decoder_layers,
        }
    )


PUBLISHED = llama_like.published(
    "gemma3_text",
    defaults=dict(
        hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8
    ),
    names=names,
    heads={
        **llama_like.heads("Gemma3", only=("lm",)),
        **llama_like.heads("Gemma3Text", only=("sequence_classification", "none")),
    },
    fields=gemma2.FIELDS,
    fixed={"attention_bias": False},
    # read by transformers, and not applied
    harmless=("attn_logit_softcapping", "hidden_act"),
    read=read,
    write=write,
)
