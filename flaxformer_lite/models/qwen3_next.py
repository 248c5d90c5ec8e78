"""Qwen3-Next without experts: three layers of Gated DeltaNet to one of gated attention.

Reference: Qwen Team, "Qwen3-Next" (2025).
"""

from functools import partial

from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig
from flaxformer_lite.files.read import Json, brief
from flaxformer_lite.models import llama, qwen3
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.weight_map import (
    Fields,
    ModelFields,
    Published,
    Row,
    activation_of,
    rows,
    shortest_pattern,
    within,
)
from flaxformer_lite.nn.mixers.gated_delta import GatedDeltaConfig
from flaxformer_lite.nn.positions.rope import Rope

EVERY = 4
DELTA = GatedDeltaConfig()


def pattern(delta: GatedDeltaConfig, every: int = EVERY) -> tuple[LayerKind, ...]:
    """Returns layers of which every so many-th is attention."""
    return (*[LayerKind(mixer=delta)] * (every - 1), LayerKind())


BASE = qwen3.BASE | dict(
    norm="rms_offset",
    qk_norm="rms_offset",
    attention_gate=True,
    position=Rope(base=10000000.0, fraction=0.25),
    pattern=pattern(DELTA),
)
PRESETS = {
    "tiny": dict(
        d_model=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        mlp_dim=344,
        decoder_layers=4,
        pattern=pattern(GatedDeltaConfig(key_heads=2, value_heads=4, key_dim=32, value_dim=32), 2),
    ),
    # the sizes of the 80B model's layers, with transformers' default feed-forward for dense ones
    "dense": dict(
        d_model=2048, num_heads=16, num_kv_heads=2, head_dim=256, mlp_dim=5632, decoder_layers=48
    ),
}
config = partial(build, "qwen3_next", BASE, PRESETS, "dense")
Model = llama.Model

INNER = rows(
    ("conv1d.weight", "taps"),
    ("A_log", "log_decay"),
    ("dt_bias", "decay_bias"),
    ("norm", "norm"),
    ("out_proj", "out"),
)
JOINED = rows(
    ("in_proj_qkvz", ("query", "key", "value", "gate"), "G+OI"),
    ("in_proj_ba", ("rate", "decay"), "G+OI"),
)
GATED = rows(("self_attn.q_proj", ("attention/query", "attention/gate"), "N2HI"))


def layer(projections: tuple[Row, ...]) -> tuple[Row, ...]:
    """Returns the rows of a layer of either kind, with those of the delta rule's projections."""
    plain = tuple(row for row in llama.LAYER if row.name != "self_attn.q_proj")
    norm = rows(("input_layernorm", "delta_in_norm"))
    delta = within("linear_attn", "delta", INNER + projections)
    return plain + GATED + qwen3.QK_NORMS + norm + delta


BODY = llama.ENDS + within("layers.{i}", "decoder/layer_{i}", layer(JOINED))
TYPES = ("linear_attention", "full_attention")
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
    every = fields.size("full_attention_interval", EVERY)
    types = fields.get("layer_types", kind=list)
    if types is None:
        types = [TYPES[(i + 1) % every == 0] for i in range(layers)]
    if len(types) != layers or not set(types) <= set(TYPES):
        raise ConfigError(
            f"config.json: layer_types={brief(types)}: must be {layers} entries, each"
            f" {' or '.join(TYPES)}."
        )
    kinds = [LayerKind(mixer=delta if kind == TYPES[0] else None) for kind in types]
    biased = ("query", "key", "value", "out") if fields.get("attention_bias", False) else ()
    return llama.read_sizes(fields, kv_heads=2, head_dim=256) | {
        "position": read_rope(fields, fraction="partial_rotary_factor", default_fraction=0.25),
        "pattern": shortest_pattern(kinds),
        "bias_at": biased,
    }


def write_layers(cfg: ModelConfig) -> Json:
    kinds = [cfg.kinds[i % len(cfg.kinds)].mixer for i in range(cfg.decoder_layers)]
    deltas = [mixer for mixer in kinds if isinstance(mixer, GatedDeltaConfig)]
    delta = deltas[0] if deltas else DELTA
    return {
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_width,
        **write_rope(cfg.position, fraction="partial_rotary_factor"),
        **{name: getattr(delta, ours) for name, ours in SIZES.items()},
        "layer_types": [TYPES[mixer is None] for mixer in kinds],
        "attention_bias": "query" in cfg.bias_at,
    }


def read(fields: Fields) -> ModelFields:
    """Reads layers, none of which may have experts."""
    layers = fields.get("num_hidden_layers", 48)
    experts = fields.get("num_experts", 512)
    step = fields.size("decoder_sparse_step", 1)
    dense = fields.get("mlp_only_layers", kind=list) or []
    if experts and any(i not in dense and (i + 1) % step == 0 for i in range(layers)):
        raise ConfigError(
            f"config.json: num_experts={experts}: layers of Qwen3-Next with experts are not"
            " computed here; num_experts=0, or mlp_only_layers with all layers, has none."
        )
    return read_layers(fields, layers)


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
    heads=llama.heads("Qwen3Next"),
    fields=llama.FIELDS,
    harmless=(
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "num_experts_per_tok",
        "norm_topk_prob",
        "output_router_logits",
        "router_aux_loss_coef",
    ),
    read=read,
    write=lambda cfg: write_layers(cfg) | {"num_experts": 0, "mlp_only_layers": []},
    ignored=(*llama.BUFFERS, r"mtp\..*"),
)
