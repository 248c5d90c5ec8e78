"""Sizes, windows, and the names and fields of experts that Qwen's families share."""

from typing import Any

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import experts, llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    largest_window,
    read_windows,
    repeat_pattern,
    shortest_pattern,
    write_windows,
)
from flaxformer_lite.models.weight_map import weight_rows
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=151936,
    max_length=32768,
    norm_eps=1e-6,
    bias_at=("query", "key", "value"),
    position=Rope(base=1000000.0),
)
ROUTED_EXPERTS = weight_rows(
    ("mlp.gate", "mlp/router"),
    ("mlp.experts.{e}.gate_proj", "mlp/expert_{e}/gate"),
    ("mlp.experts.{e}.up_proj", "mlp/expert_{e}/up"),
    ("mlp.experts.{e}.down_proj", "mlp/expert_{e}/down"),
)
EXPERTS = ROUTED_EXPERTS + weight_rows(
    ("mlp.shared_expert.gate_proj", "mlp/shared/gate"),
    ("mlp.shared_expert.up_proj", "mlp/shared/up"),
    ("mlp.shared_expert.down_proj", "mlp/shared/down"),
    ("mlp.shared_expert_gate", "mlp/shared_gate"),
)


def read_attention(fields: Fields, kv_heads: int, head_dim: int = 0) -> ModelFields:
    """Reads heads and windows: if windows are on, the layers from `max_window_layers` on slide."""
    layers = fields.get("num_hidden_layers", 32)
    first = fields.get("max_window_layers", 28)
    window = fields.nullable("sliding_window", 4096)
    on = fields.get("use_sliding_window", False)
    windows = read_windows(fields, layers, lambda i: on and i >= first, window if on else 0)
    return llama_like.read_heads(fields, kv_heads, head_dim) | {"windows": windows}


def write_attention(cfg: ModelConfig) -> Json:
    fields = llama_like.write_heads(cfg) | {"use_sliding_window": False}
    if largest_window(cfg):
        fields |= write_windows(cfg, None) | {"use_sliding_window": True}
    return fields


def read_window(fields: Fields) -> int:
    """Reads the sliding window; 0 where windows are off, whatever their size."""
    window = fields.get("sliding_window", 4096)
    if not fields.get("use_sliding_window", False):
        return 0
    return window


def sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Returns whether each of the layers has experts."""
    dense = fields.get("mlp_only_layers", [])
    every = fields.size("decoder_sparse_step", 1)
    return [i not in dense and (i + 1) % every == 0 for i in range(layers)]


def read_moe(fields: Fields, **family: Any) -> MoeConfig:
    """Reads the experts.

    Args:
      fields: a published config.
      **family: the family's defaults of the numbers of experts, and further fields of MoeConfig.
    """
    name = "num_local_experts" if "num_local_experts" in fields.values else "num_experts"
    read = {
        "num_experts": fields.size(name, family.pop("num_experts")),
        "experts_per_token": fields.size("num_experts_per_tok", family.pop("experts_per_token")),
        "normalize": fields.get("norm_topk_prob", False),
        **experts.read_router_losses(fields),
    }
    return MoeConfig(**read | family)


def read_experts(fields: Fields, windows: tuple[int, ...], **family: object) -> ModelFields:
    """Reads the experts, and which layers have none.

    Args:
      fields: a published config.
      windows: the windows that the layers repeat.
      **family: as in `read_moe`.
    """
    moe = read_moe(fields, **family)
    sparse = sparse_layers(fields, fields.get("num_hidden_layers", 24))
    if all(sparse):
        return {"feed_forward": moe, "windows": windows}
    kinds = []
    for i, has_experts in enumerate(sparse):
        window = windows[i % len(windows)]
        kinds.append(LayerKind(window=window, feed_forward=moe if has_experts else None))
    return {"feed_forward": None, "pattern": shortest_pattern(kinds)}


def write_experts(cfg: ModelConfig) -> Json:
    moe = experts.find_experts(cfg)
    dense = []
    for i, kind in enumerate(repeat_pattern(cfg.kinds, cfg.decoder_layers)):
        if (kind.feed_forward or cfg.feed_forward) is None:
            dense.append(i)
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "norm_topk_prob": moe.normalize,
        "moe_intermediate_size": moe.mlp_dim or cfg.mlp_dim,
        **experts.write_router_losses(moe),
        "mlp_only_layers": dense,
        "decoder_sparse_step": 1,
    }
