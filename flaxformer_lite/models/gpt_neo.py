"""GPT-Neo: GPT-2 with a local window in every other layer and attention logits that are not scaled.

Answers of question answering are chosen by a softmax over all columns. Where a row ends in more
padding than the window is wide (256 in the published models), the last columns see no key in a
local layer: here they attend to nothing, as in transformers' flash attention, while its eager
attention averages values that the window or the mask rules out. Its loss of such a row differs.

Reference: Black et al., "GPT-Neo: Large Scale Autoregressive Language Modeling with
Mesh-Tensorflow" (2021).
"""

from functools import partial

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.models.common import gpt2_like
from flaxformer_lite.models.fields import Fields, ModelFields, read_windows, repeat_pattern
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import (
    Published,
    add_prefix,
    attention_rows,
    build_heads,
    weight_rows,
)

BASE = gpt2_like.BASE | dict(
    max_length=2048,
    attention_scale=1.0,
    bias_at=("out", "mlp"),
    windows=(0, 256),
    dropout=0.0,
    init="normal",
)
PRESETS = {
    "tiny": dict(gpt2_like.PRESETS["tiny"], windows=(0, 64)),
    "125m": gpt2_like.PRESETS["small"],
    "1.3b": dict(d_model=2048, num_heads=16, mlp_dim=8192, decoder_layers=24),
    "2.7b": dict(d_model=2560, num_heads=20, mlp_dim=10240, decoder_layers=32),
}
config = partial(build_config, "gpt_neo", BASE, PRESETS, "1.3b")
Model = gpt2_like.Model
LAYER = add_prefix(
    "attn.attention", "attention", attention_rows("q_proj", "k_proj", "v_proj", "out_proj")
) + weight_rows(
    ("ln_1", "attention_in_norm"),
    ("ln_2", "mlp_in_norm"),
    ("mlp.c_fc", "mlp/up"),
    ("mlp.c_proj", "mlp/down"),
)
BODY = gpt2_like.ENDS + add_prefix("h.{i}", "decoder/layer_{i}", LAYER)


def read(fields: Fields) -> ModelFields:
    """Reads the windows from `attention_types`, [[pattern, times] ...].

    `attention_layers` only spells it out.
    """
    layers = fields.get("num_layers", 24)
    types = fields.get("attention_types", [[["global", "local"], layers // 2]])
    try:
        pattern = []
        for kinds, times in types:
            pattern += kinds * min(times, layers + 1)
    except (TypeError, ValueError):
        pattern = types
    if any(kind not in ("global", "local") for kind in pattern) or len(pattern) != layers:
        raise ConfigError(
            f"config.json: attention_types gives {quote_value(pattern)}; must be global or local"
            f" for each of {layers} layers."
        )
    windows = read_windows(
        fields, layers, lambda i: pattern[i] == "local", fields.get("window_size", 256)
    )
    return {
        "windows": windows,
        "mlp_dim": fields.get("intermediate_size", 4 * fields.get("hidden_size", 2048)),
    }


def write(cfg: ModelConfig) -> Json:
    windows = repeat_pattern(cfg.windows, cfg.decoder_layers)
    kinds = ["local" if window else "global" for window in windows]
    return {
        "attention_types": [[kinds, 1]],
        "attention_layers": kinds,
        "window_size": max(cfg.windows) or 256,
        "intermediate_size": cfg.mlp_dim,
    }


FIELDS = dict(
    hidden_size="d_model",
    num_layers="decoder_layers",
    num_heads="num_heads",
    max_position_embeddings="max_length",
    activation_function="activation",
    layer_norm_epsilon="norm_eps",
)
PUBLISHED = Published(
    model_type="gpt_neo",
    prefix="transformer.",
    names=lambda cfg: BODY,
    heads=build_heads("GPTNeo", **gpt2_like.HEADS),
    fields=FIELDS,
    harmless=("attention_layers", *gpt2_like.HARMLESS),
    read=read,
    write=write,
    ignored=(r"h\.\d+\.attn\.attention\.(masked_)?bias",),
)
