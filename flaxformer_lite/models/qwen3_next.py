"""Qwen3-Next: three layers of Gated DeltaNet to one of gated attention, and experts.

Reference: Qwen Team, "Qwen3-Next" (2025).
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import qwen3
from flaxformer_lite.models.common import experts, llama_like, qwen_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    activation_of,
    read_types,
    repeat_pattern,
    shortest_pattern,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.models.weight_map import (
    Published,
    WeightRow,
    add_prefix,
    omit_prefixes,
    weight_rows,
)
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.mixers.gated_delta import GatedDeltaConfig
from flaxformer_lite.nn.positions.rope import Rope

ATTENTION_LAYER_PERIOD = 4  # every fourth layer has attention, the others the delta rule
DELTA = GatedDeltaConfig()


def pattern(delta: GatedDeltaConfig, every: int = ATTENTION_LAYER_PERIOD) -> tuple[LayerKind, ...]:
    """Returns `every` layers: delta layers, then one of attention."""
    return (*[LayerKind(mixer=delta)] * (every - 1), LayerKind())


BASE = qwen3.BASE | dict(
    norm="rms_offset",
    qk_norm="rms_offset",
    attention_gate=True,
    position=Rope(base=10000000.0, fraction=0.25),
    pattern=pattern(DELTA),
)
SIZES_TINY = dict(
    d_model=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_dim=344,
    decoder_layers=4,
    pattern=pattern(GatedDeltaConfig(key_heads=2, value_heads=4, key_dim=32, value_dim=32), 2),
)
SIZES_80B = dict(
    d_model=2048, num_heads=16, num_kv_heads=2, head_dim=256, mlp_dim=5632, decoder_layers=48
)
PRESETS = {
    "tiny": SIZES_TINY,
    # the sizes of the 80B model's layers, with transformers' default feed-forward for dense ones
    "dense": SIZES_80B,
    "80b_a3b": SIZES_80B
    | dict(
        feed_forward=MoeConfig(
            num_experts=512,
            experts_per_token=10,
            mlp_dim=512,
            shared_dim=512,
            shared_gate=True,
            balance=0.001,
        )
    ),
}
config = partial(build_config, "qwen3_next", BASE, PRESETS, "dense")
Model = llama_like.Model

INNER = weight_rows(
    ("conv1d.weight", "taps"),
    ("A_log", "log_decay"),
    ("dt_bias", "decay_bias"),
    ("norm", "norm"),
    ("out_proj", "out"),
)
JOINED = weight_rows(
    ("in_proj_qkvz", ("query", "key", "value", "gate"), "G+OI"),
    ("in_proj_ba", ("rate", "decay"), "G+OI"),
)
GATED = weight_rows(("self_attn.q_proj", ("attention/query", "attention/gate"), "N2HI"))


def layer(projections: tuple[WeightRow, ...]) -> tuple[WeightRow, ...]:
    """Returns the rows of a layer of either kind, with the delta rule's projections."""
    plain = omit_prefixes(llama_like.LAYER, "self_attn.q_proj")
    norm = weight_rows(("input_layernorm", "delta_in_norm"))
    delta = add_prefix("linear_attn", "delta", INNER + projections)
    return plain + GATED + llama_like.QK_NORMS + norm + delta + qwen_like.EXPERTS


BODY = llama_like.decoder_body(layer(JOINED))
LINEAR = "linear_attention"  # layers with the delta rule
FULL = "full_attention"
SIZES = {
    "linear_num_key_heads": "key_heads",
    "linear_num_value_heads": "value_heads",
    "linear_key_head_dim": "key_dim",
    "linear_value_head_dim": "value_dim",
    "linear_conv_kernel_dim": "taps",
}


def read_layers(fields: Fields, layers: int) -> ModelFields:
    """Reads attention and the kinds of layers."""
    sizes = {ours: fields.size(name, getattr(DELTA, ours)) for name, ours in SIZES.items()}
    act = activation_of("hidden_act", fields.get("hidden_act", "silu"))
    delta = GatedDeltaConfig(**sizes, norm_eps=fields.get("rms_norm_eps", 1e-6), activation=act)
    every = fields.size("full_attention_interval", ATTENTION_LAYER_PERIOD)
    kinds = {LINEAR: LayerKind(mixer=delta), FULL: LayerKind()}
    usual = [LINEAR if (i + 1) % every else FULL for i in range(layers)]
    biased = llama_like.attention_biases(fields)
    return llama_like.read_sizes(fields, kv_heads=2, head_dim=256) | {
        "position": read_rope(fields, fraction="partial_rotary_factor", default_fraction=0.25),
        "pattern": shortest_pattern([kinds[name] for name in read_types(fields, kinds, usual)]),
        "bias_at": biased,
    }


def write_layers(cfg: ModelConfig) -> Json:
    mixers = [kind.mixer for kind in repeat_pattern(cfg.kinds, cfg.decoder_layers)]
    deltas = [mixer for mixer in mixers if isinstance(mixer, GatedDeltaConfig)]
    delta = deltas[0] if deltas else DELTA
    fields = {
        **llama_like.write_heads(cfg, fraction="partial_rotary_factor"),
        **{name: getattr(delta, ours) for name, ours in SIZES.items()},
        "layer_types": [FULL if mixer is None else LINEAR for mixer in mixers],
        "attention_bias": "query" in cfg.bias_at,
    }
    if None in mixers:  # for loaders that know no `layer_types`
        fields["full_attention_interval"] = 1 + mixers.index(None)
    return fields


def read_experts(
    fields: Fields, layers: int, *, num_experts: int, experts_per_token: int, normalize: bool
) -> ModelFields:
    """Reads attention, the kinds of layers, and their experts.

    Args:
      fields: a published config.
      layers: number of layers.
      num_experts, experts_per_token: the family's defaults.
      normalize: whether the weights of a token's experts are normalized to sum to 1.
    """
    made = read_layers(fields, layers)
    sparse = qwen_like.sparse_layers(fields, layers)
    if not any(sparse):
        return made
    moe = qwen_like.read_moe(
        fields,
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        mlp_dim=fields.size("moe_intermediate_size", 512),
        shared_dim=fields.size("shared_expert_intermediate_size", 512),
        shared_gate=True,
        normalize=normalize,
    )
    if all(sparse):
        return made | {"feed_forward": moe}
    kinds = []
    for i, has_experts in enumerate(sparse):
        kind = made["pattern"][i % len(made["pattern"])]
        kinds.append(dataclasses.replace(kind, feed_forward=moe if has_experts else None))
    return made | {"pattern": shortest_pattern(kinds)}


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 48)
    if not fields.get("num_experts", 512):
        return read_layers(fields, layers)
    normalize = fields.get("norm_topk_prob", True)
    return read_experts(fields, layers, num_experts=512, experts_per_token=10, normalize=normalize)


def write(cfg: ModelConfig) -> Json:
    fields = write_layers(cfg)
    parts = [cfg.feed_forward, *(kind.feed_forward for kind in cfg.kinds)]
    if not any(isinstance(part, MoeConfig) for part in parts):
        return fields | {"num_experts": 0, "mlp_only_layers": []}
    shared = experts.find_experts(cfg).shared_dim
    return fields | qwen_like.write_experts(cfg) | {"shared_expert_intermediate_size": shared}


PUBLISHED = Published(
    model_type="qwen3_next",
    defaults=dict(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=48,
        num_attention_heads=16,
        max_position_embeddings=32768,
    ),
    prefix="model.",
    names=lambda cfg: BODY,
    heads=llama_like.heads("Qwen3Next"),
    fields=llama_like.FIELDS,
    harmless=(
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "num_experts_per_tok",
        "norm_topk_prob",
        "output_router_logits",
        "router_aux_loss_coef",
        "mlp_only_layers",
        "decoder_sparse_step",
    ),
    read=read,
    write=write,
    ignored=(*llama_like.BUFFERS, r"mtp\..*"),
)
