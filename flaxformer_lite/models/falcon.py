"""Falcon: attention and feed-forward in parallel, with one key head for all queries or a group.

Reference: Almazrouei et al., "The Falcon Series of Open Language Models" (2023), section 4.
"""

from functools import partial

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import gpt2_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    WeightRow,
    add_prefix,
    build_heads,
    weight_rows,
)
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.nn.positions.rounded_alibi import RoundedAlibi

ALL = ("query", "key", "value", "out", "mlp")
BASE = dict(
    vocab_size=65024, max_length=2048, position=Rope(), norm_eps=1e-5, residual="parallel_shared"
)
RW = dict(vocab_size=50304, residual="sequential", position=RoundedAlibi(), bias_at=ALL)
PRESETS = {  # table 10, and the models of RefinedWeb alone
    "tiny": dict(d_model=128, num_heads=4, num_kv_heads=1, mlp_dim=512, decoder_layers=4),
    "rw_1b": RW | dict(d_model=2048, num_heads=32, mlp_dim=8192, decoder_layers=24),
    "7b": dict(d_model=4544, num_heads=71, num_kv_heads=1, mlp_dim=18176, decoder_layers=32),
    "40b": dict(
        d_model=8192,
        num_heads=128,
        num_kv_heads=8,
        mlp_dim=32768,
        decoder_layers=60,
        residual="parallel",
    ),
}
config = partial(build_config, "falcon", BASE, PRESETS, "7b")
Model = DecoderModel
LAYER = weight_rows(
    (
        "self_attention.query_key_value",
        ("attention/query", "attention/key", "attention/value"),
        "G+OI",
    ),
    ("self_attention.dense", "attention/out"),
    ("mlp.dense_h_to_4h", "mlp/up"),
    ("mlp.dense_4h_to_h", "mlp/down"),
)
NORMS = {
    "parallel": ("ln_attn", "ln_mlp"),
    "parallel_shared": ("input_layernorm",),
    "sequential": ("input_layernorm", "post_attention_layernorm"),
}
ENDS = weight_rows(("word_embeddings", "token_embed"), ("ln_f", "decoder/final_norm"))


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    slots = zip(NORMS[cfg.residual], ("attention_in_norm", "mlp_in_norm"), strict=False)
    return ENDS + add_prefix("h.{i}", "decoder/layer_{i}", LAYER + weight_rows(*slots))


def read(fields: Fields) -> ModelFields:
    """Reads the three architectures: of 40B and 180B, of 7B, and of the early models."""
    width = fields.get("hidden_size", 4544)
    count = fields.get("num_attention_heads", 71)
    grouped = fields.get("new_decoder_architecture", False)
    norms = fields.get("num_ln_in_parallel_attn", 2 if grouped else 1)
    if norms not in (1, 2) or (norms == 2 and not grouped):
        raise ConfigError(
            f"config.json: num_ln_in_parallel_attn={norms}: must be 1, or 2 with"
            " new_decoder_architecture."
        )
    parallel = fields.get("parallel_attn", True)
    single = fields.get("multi_query", True)
    residual = "parallel_shared" if parallel else "sequential"
    kv_heads = 1 if single else count
    if grouped:
        residual = "parallel" if norms == 2 else "parallel_shared"
        kv_heads = fields.get("num_kv_heads", count)
    fields.get("num_kv_heads")
    rope = read_rope(fields)  # transformers writes its fields with ALiBi, too
    return {
        "num_kv_heads": kv_heads,
        "mlp_dim": fields.get("ffn_hidden_size", 4 * width),
        "residual": residual,
        "position": RoundedAlibi() if fields.get("alibi", False) else rope,
        "bias_at": ALL if fields.get("bias", False) else (),
    }


def write(cfg: ModelConfig) -> Json:
    grouped = cfg.residual == "parallel" or 1 < cfg.kv_heads < cfg.num_heads
    alibi = isinstance(cfg.position, RoundedAlibi)
    fields = {
        "alibi": alibi,
        "num_kv_heads": cfg.kv_heads,
        "ffn_hidden_size": cfg.mlp_dim,
        "new_decoder_architecture": grouped,
        "num_ln_in_parallel_attn": len(NORMS[cfg.residual]) if grouped else None,
        "parallel_attn": cfg.residual != "sequential",
        "multi_query": cfg.kv_heads == 1,
        "bias": "mlp" in cfg.bias_at,
    }
    if alibi:
        return fields
    return fields | write_rope(cfg.position)


PUBLISHED = Published(
    model_type="falcon",
    prefix="transformer.",
    names=names,
    heads=build_heads("Falcon", **gpt2_like.HEADS),
    fields=dict(
        hidden_size="d_model",
        num_hidden_layers="decoder_layers",
        num_attention_heads="num_heads",
        max_position_embeddings="max_length",
        activation="activation",
        layer_norm_epsilon="norm_eps",
    ),
    harmless=("apply_residual_connection_post_layernorm",),
    read=read,
    write=write,
)
