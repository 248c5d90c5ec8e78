"""Switch Transformers: T5 with experts in some layers; each token uses one expert.

Each expert has room for a limited number of tokens of a row; the others pass it by.

Reference: Fedus et al., "Switch Transformers" (2021), section 2.
"""

from functools import partial

from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import weight_map
from flaxformer_lite.models.common import experts, t5_like
from flaxformer_lite.models.fields import (
    ACTIVATION_NAMES,
    Fields,
    ModelFields,
    repeat_pattern,
    shortest_pattern,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, Published, WeightRow, weight_rows
from flaxformer_lite.nn.feed_forwards.capacity_moe import CapacityMoeConfig

# Every other layer has experts. Nothing is dropped within a layer, as experts drop nothing there.
BASE = t5_like.BASE | dict(dropout_at=("embed", "attention", "branch", "final"))


def _with_experts(count: int) -> dict:
    """Returns the rates of section 2.3 for this many experts in every other layer."""
    moe = CapacityMoeConfig(num_experts=count, z_loss=0.001)
    return dict(pattern=(LayerKind(), LayerKind(feed_forward=moe)))


PRESETS = {  # table 9; the published files are of 8 to 256 experts
    "tiny": t5_like.PRESETS["tiny"] | _with_experts(4),
    "base_8": t5_like.PRESETS["base"] | _with_experts(8),
    "base_128": t5_like.PRESETS["base"] | _with_experts(128),
    "large_128": t5_like.PRESETS["large"] | _with_experts(128),
}
config = partial(build_config, "switch_transformers", BASE, PRESETS, "base_8")


class Model(t5_like.Model):
    """Switch Transformers; the language model, the encoder, or both without a head."""

    heads = ("lm", "none", "encoder")


EXPERTS = weight_rows(
    ("router.classifier", "router"),
    ("experts.expert_{e}.wi", "expert_{e}/up"),
    ("experts.expert_{e}.wo", "expert_{e}/down"),
)


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    return t5_like.names(cfg, feed_forward="mlp", experts=EXPERTS)


def has_experts(layer: int, step: int) -> bool:
    """Returns whether a layer has experts, as transformers decides it."""
    return step > 0 and (layer % step == 1 or step == 1)


def kinds_of(layers: int, step: int, moe: CapacityMoeConfig) -> tuple[LayerKind, ...]:
    kinds = []
    for i in range(layers):
        kinds.append(LayerKind(feed_forward=moe if has_experts(i, step) else None))
    return shortest_pattern(kinds)


def read_step(fields: Fields, side: str, layers: int) -> int:
    """Reads how many layers come to one with experts.

    If there shall be none, transformers takes the number of layers, so that layer 1 has experts all
    the same.
    """
    count = fields.get(f"num_sparse_{side}_layers", 3)
    return fields.get(f"{side}_sparse_step", layers // count if count > 0 else layers)


def read(fields: Fields) -> ModelFields:
    fields.require("router_dtype", "float32")
    sizes = t5_like.read_sizes(fields)
    moe = CapacityMoeConfig(
        num_experts=fields.size("num_experts", 8),
        # transformers counts the tokens of each row, padding too, in training and at inference
        capacity=fields.size("expert_capacity", 64),
        router_bias=fields.get("router_bias", False),
        jitter=fields.get("router_jitter_noise", 0.01),
        **experts.read_router_losses(fields, over="row", z_loss=0.001),
    )
    kinds = {}
    for side, layers in (
        ("encoder", fields.get("num_layers", 12)),
        ("decoder", sizes["decoder_layers"]),
    ):
        step = read_step(fields, side, layers)
        if step == 1 and moe.losses_over == "row":
            raise ConfigError(
                f"config.json: {side}_sparse_step=1: transformers then leaves the losses of the"
                f" {side}'s routers out; set output_router_logits=false."
            )
        kinds[side] = kinds_of(layers, step, moe)
    tied = fields.get("tie_word_embeddings", True)
    same = kinds["decoder"] == kinds["encoder"]
    return sizes | {
        "logit_power": -0.5 if tied else 0.0,
        "pattern": kinds["encoder"],
        "decoder_pattern": () if same else kinds["decoder"],
    }


def step_of(kinds: tuple[LayerKind, ...], layers: int) -> int:
    """Returns the step with which transformers gives the same layers experts; 0 if none has any."""
    sparse = [kind.feed_forward is not None for kind in repeat_pattern(kinds, layers)]
    for step in range(1, layers + 1):
        if sparse == [has_experts(i, step) for i in range(layers)]:
            return step
    return 0


def write(cfg: ModelConfig) -> Json:
    moe = experts.find_experts(cfg)
    assert isinstance(moe, CapacityMoeConfig)
    fields = t5_like.write_sizes(cfg) | {
        "dense_act_fn": ACTIVATION_NAMES[cfg.activation][0],
        "num_experts": moe.num_experts,
        "expert_capacity": moe.capacity,
        "router_bias": moe.router_bias,
        "router_jitter_noise": moe.jitter,
        **experts.write_router_losses(moe, over="row"),
    }
    for side, kinds, layers in (
        ("encoder", cfg.kinds, cfg.encoder_layers),
        ("decoder", cfg.of_decoder.kinds, cfg.decoder_layers),
    ):
        step = step_of(kinds, layers)
        fields[f"{side}_sparse_step"] = step
        fields[f"num_sparse_{side}_layers"] = layers // step if step else 0
    return fields


PUBLISHED = Published(
    model_type="switch_transformers",
    names=names,
    heads=weight_map.build_heads(
        "SwitchTransformers",
        lm=Head("SwitchTransformersForConditionalGeneration"),
        none=(),
        encoder=(),
    ),
    fields=t5_like.FIELDS,
    defaults=dict(num_layers=12, d_ff=2048, d_model=768, num_heads=12, num_decoder_layers=12),
    read=read,
    write=write,
    fixed=t5_like.FIXED,
    harmless=(
        *t5_like.HARMLESS,
        "add_cross_attention",
        "add_router_probs",
        "router_ignore_padding_tokens",
    ),
    duplicates=t5_like.DUPLICATES,
    ignored=t5_like.UNUSED,
)
