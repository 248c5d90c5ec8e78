"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts and one that all tokens use.

Reference: Yang et al., "Qwen2 Technical Report" (2024), section 2.2.2.
"""

from functools import partial
from typing import Any

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import qwen2
from flaxformer_lite.models.common import experts, llama_like
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import (
    Fields,
    ModelFields,
    Published,
    add_prefix,
    layer_types,
    read_windows,
    repeated,
    shortest_pattern,
    weight_rows,
)
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig

BASE = qwen2.BASE
PRESETS = {
    "tiny": dict(
        d_model=128,
        num_heads=4,
        num_kv_heads=2,
        mlp_dim=344,
        decoder_layers=4,
        feed_forward=MoeConfig(mlp_dim=86, shared_dim=172, shared_gate=True, normalize=False),
    ),
    "a2.7b": dict(  # Qwen1.5-MoE-A2.7B
        d_model=2048,
        num_heads=16,
        mlp_dim=5632,
        decoder_layers=24,
        max_length=8192,
        feed_forward=MoeConfig(
            num_experts=60,
            experts_per_token=4,
            mlp_dim=1408,
            shared_dim=5632,
            shared_gate=True,
            normalize=False,
            balance=0.001,
        ),
    ),
}
config = partial(build, "qwen2_moe", BASE, PRESETS, "a2.7b")
Model = llama_like.Model
EXPERTS = weight_rows(
    ("mlp.gate", "mlp/router"),
    ("mlp.experts.{e}.gate_proj", "mlp/expert_{e}/gate"),
    ("mlp.experts.{e}.up_proj", "mlp/expert_{e}/up"),
    ("mlp.experts.{e}.down_proj", "mlp/expert_{e}/down"),
    ("mlp.shared_expert.gate_proj", "mlp/shared/gate"),
    ("mlp.shared_expert.up_proj", "mlp/shared/up"),
    ("mlp.shared_expert.down_proj", "mlp/shared/down"),
    ("mlp.shared_expert_gate", "mlp/shared_gate"),
)
BODY = llama_like.ENDS + add_prefix("layers.{i}", "decoder/layer_{i}", llama_like.LAYER + EXPERTS)


def sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Returns whether each of the layers has experts."""
    dense = fields.get("mlp_only_layers", [])
    every = fields.size("decoder_sparse_step", 1)
    return [i not in dense and (i + 1) % every == 0 for i in range(layers)]


def experts_of(fields: Fields, **family: Any) -> MoeConfig:
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
      **family: as in `experts_of`.
    """
    moe = experts_of(fields, **family)
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
    for i, kind in enumerate(repeated(cfg.kinds, cfg.decoder_layers)):
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


def read_window(fields: Fields) -> int:
    """Reads the sliding window; 0 where windows are off, whatever their size."""
    window = fields.get("sliding_window", 4096)
    if not fields.get("use_sliding_window", False):
        return 0
    return window


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 24)
    first = fields.get("max_window_layers", 28)
    window = read_window(fields)
    sliding = [window > 0 and i % 2 == 0 and i < first for i in range(layers)]
    windows = read_windows(fields, layers, sliding.__getitem__, window)
    biased = ("query", "key", "value") if fields.get("qkv_bias", True) else ()
    experts = read_experts(
        fields,
        windows,
        num_experts=60,
        experts_per_token=4,
        mlp_dim=fields.size("moe_intermediate_size", 1408),
        shared_dim=fields.size("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return llama_like.read_heads(fields, kv_heads=16) | experts | {"bias_at": biased}


def write(cfg: ModelConfig) -> Json:
    fields = llama_like.write_heads(cfg) | write_experts(cfg)
    window = max(kind.window or 0 for kind in cfg.kinds)
    if window:
        fields["sliding_window"] = window
        fields["layer_types"] = layer_types(cfg)
    return fields | {
        "use_sliding_window": window > 0,
        "shared_expert_intermediate_size": experts.find_experts(cfg).shared_dim,
        "qkv_bias": "query" in cfg.bias_at,
    }


PUBLISHED = Published(
    model_type="qwen2_moe",
    defaults=dict(vocab_size=151936, max_position_embeddings=32768),
    prefix="model.",
    names=lambda cfg: BODY,
    heads=llama_like.heads("Qwen2Moe", "model."),
    fields=llama_like.FIELDS,
    read=read,
    write=write,
    ignored=llama_like.BUFFERS,
)
