"""GPT-Neo: GPT-2 with a local window in every other layer and attention logits that are not scaled.

Reference: Black et al., "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow" (2021).
"""

from typing import Any

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.models import bert, gpt2, llama
from flaxformer_lite.models.gpt2 import Model
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import Fields, Head, Published, read_windows, rows, within

__all__ = ["PRESETS", "PUBLISHED", "Model", "config"]

BASE = gpt2.BASE | dict(
    max_length=2048, attention_scale=1.0, bias_at=("out", "mlp"), windows=(0, 256), dropout=0.0, init="normal"
)
PRESETS = {
    "tiny": dict(gpt2.PRESETS["tiny"], windows=(0, 64)),
    "125m": gpt2.PRESETS["small"],
    "1.3b": dict(d_model=2048, num_heads=16, mlp_dim=8192, decoder_layers=24),
    "2.7b": dict(d_model=2560, num_heads=20, mlp_dim=10240, decoder_layers=32),
}
LAYER = rows(
    ("ln_1", "attention_in_norm"),
    ("attn.attention.q_proj", "attention/query"),
    ("attn.attention.k_proj", "attention/key"),
    ("attn.attention.v_proj", "attention/value"),
    ("attn.attention.out_proj", "attention/out"),
    ("ln_2", "mlp_in_norm"),
    ("mlp.c_fc", "mlp/up"),
    ("mlp.c_proj", "mlp/down"),
)
BODY = gpt2.ENDS + within("h.{i}", "decoder/layer_{i}", LAYER)


def config(preset: str = "1.3b", **overrides) -> ModelConfig:
    """Builds a config with the published sizes; keyword arguments override its fields."""
    return build("gpt_neo", BASE, PRESETS, preset, overrides)


def read(fields: Fields) -> dict[str, Any]:
    """Reads the windows from `attention_types`, [[pattern, times] ...]; `attention_layers` only spells it out."""
    layers = fields.get("num_layers", 24)
    types = fields.get("attention_types", [[["global", "local"], layers // 2]])
    try:
        pattern = [kind for kinds, times in types for kind in kinds * min(times, layers + 1)]
    except (TypeError, ValueError):
        pattern = types
    if any(kind not in ("global", "local") for kind in pattern) or len(pattern) != layers:
        raise ConfigError(
            f"config.json: attention_types gives {pattern}; must be global or local for each of {layers} layers."
        )
    windows = read_windows(fields, layers, lambda i: pattern[i] == "local", fields.get("window_size", 256))
    return {"windows": windows, "mlp_dim": fields.get("intermediate_size", 4 * fields.get("hidden_size", 2048))}


def write(cfg: ModelConfig) -> dict[str, Any]:
    kinds = ["local" if cfg.windows[i % len(cfg.windows)] else "global" for i in range(cfg.decoder_layers)]
    return {
        "attention_types": [[kinds, 1]],
        "attention_layers": kinds,
        "window_size": max(cfg.windows) or 256,
        "intermediate_size": cfg.mlp_dim,
    }


PUBLISHED = Published(
    model_type="gpt_neo",
    prefix="transformer.",
    names=lambda cfg: BODY,
    heads={
        "lm": Head("GPTNeoForCausalLM", llama.LM_HEAD),
        "sequence_classification": Head("GPTNeoForSequenceClassification", llama.SCORE),
        "token_classification": Head("GPTNeoForTokenClassification", bert.CLASSIFIER),
        "question_answering": Head("GPTNeoForQuestionAnswering", bert.SPANS),
        "none": Head("GPTNeoModel"),
    },
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_layers": "decoder_layers",
        "num_heads": "num_heads",
        "max_position_embeddings": "max_length",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_eps",
        "tie_word_embeddings": "tie_embeddings",
    },
    harmless=("attention_layers", *gpt2.HARMLESS),
    read=read,
    write=write,
    ignored=(r"h\.\d+\.attn\.attention\.(masked_)?bias",),
)
