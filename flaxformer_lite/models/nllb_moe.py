"""NLLB-MoE: M2M100 with experts in every fourth layer; each token uses two experts.

The experts of a batch have room for a limited number of tokens in training, and for all at
inference. transformers 5.23 computes another function than its earlier versions and fairseq: its
experts take the columns of a one-hot mask for numbers of experts, so that expert 1 computes every
token's first choice and expert 0 its second. The published weights are for the function here.

Reference: NLLB team, "No Language Left Behind" (2022), section 6.2.
"""

from functools import partial

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bart, m2m_100, weight_map
from flaxformer_lite.models.common import bart_like, experts
from flaxformer_lite.models.fields import Fields, ModelFields, repeat_pattern, shortest_pattern
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, Published, WeightRow, add_prefix, weight_rows
from flaxformer_lite.nn.feed_forwards.capacity_moe import CapacityMoeConfig

BASE = m2m_100.BASE


def _moe(count: int) -> CapacityMoeConfig:
    return CapacityMoeConfig(
        num_experts=count,
        experts_per_token=2,
        group="batch",
        capacity=64,
        eval_fraction=1.0,
        jitter=0.0,
        renormalize=True,
        skips_padding=True,
        masked=0.2,
    )


PRESETS = {  # section 6.2.4; every fourth layer has experts
    "tiny": m2m_100.PRESETS["tiny"] | dict(pattern=(LayerKind(), LayerKind(feed_forward=_moe(4)))),
    "54b": m2m_100.PRESETS["nllb_3.3b"]
    | dict(pattern=(*(LayerKind(),) * 3, LayerKind(feed_forward=_moe(128)))),
}
config = partial(build_config, "nllb_moe", BASE, PRESETS, "54b")
Model = m2m_100.Model


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    """Returns the weight rows, with another name for cross-attention than in M2M100."""
    layer = add_prefix("self_attn", "attention", bart_like.ATTENTION) + weight_rows(
        ("self_attn_layer_norm", "attention_in_norm"),
        ("ff_layer_norm", "mlp_in_norm"),
        ("ffn.fc1", "mlp/up"),
        ("ffn.fc2", "mlp/down"),
        ("ffn.router.classifier", "mlp/router"),
        ("ffn.experts.expert_{e}.fc1", "mlp/expert_{e}/up"),
        ("ffn.experts.expert_{e}.fc2", "mlp/expert_{e}/down"),
    )
    cross = add_prefix("cross_attention", "cross_attention", bart_like.ATTENTION)
    cross += weight_rows(("cross_attention_layer_norm", "cross_attention_in_norm"))
    listed = weight_rows(("shared", "token_embed"))
    for side, inside in (("encoder", layer), ("decoder", layer + cross)):
        listed += add_prefix(f"{side}.layers.{{i}}", f"{side}/layer_{{i}}", inside)
        listed += weight_rows((f"{side}.layer_norm", f"{side}/final_norm"))
    return listed


def kinds_of(layers: int, step: int, moe: CapacityMoeConfig) -> tuple[LayerKind, ...]:
    kinds = []
    for i in range(layers):
        has_experts = step > 0 and (i + 1) % step == 0
        kinds.append(LayerKind(feed_forward=moe if has_experts else None))
    return shortest_pattern(kinds)


def read(fields: Fields) -> ModelFields:
    fields.require("router_dtype", "float32")
    # Others draw random numbers, in transformers at inference too.
    fields.require("second_expert_policy", "all")
    before = fields.get("normalize_router_prob_before_dropping", False)
    moe = CapacityMoeConfig(
        num_experts=fields.size("num_experts", 128),
        experts_per_token=2,
        group="batch",
        # In transformers a call at inference leaves its capacity behind, for training too.
        capacity=fields.size("expert_capacity", 64),
        eval_fraction=max(fields.get("moe_eval_capacity_token_fraction", 1.0), 0.0),
        jitter=0.0,
        router_bias=fields.get("router_bias", False),
        normalize=before,
        renormalize=not before,
        prioritized=fields.get("batch_prioritized_routing", False),
        # As it is named, the field would be the other way round.
        skips_padding=not fields.get("router_ignore_padding_tokens", False),
        masked=fields.get("moe_token_dropout", 0.2),
        **experts.read_router_losses(fields),
    )
    kinds = {}
    for side in ("encoder", "decoder"):
        layers = fields.get(f"{side}_layers", 12)
        kinds[side] = kinds_of(layers, fields.get(f"{side}_sparse_step", 4), moe)
    same = kinds["decoder"] == kinds["encoder"]
    return m2m_100.read(fields) | {
        "pattern": kinds["encoder"],
        "decoder_pattern": () if same else kinds["decoder"],
    }


def step_of(kinds: tuple[LayerKind, ...], layers: int) -> int:
    """Returns the number, from 1, of the first layer with experts; 0 if none has any."""
    for number, kind in enumerate(repeat_pattern(kinds, layers), start=1):
        if kind.feed_forward is not None:
            return number
    return 0


def write(cfg: ModelConfig) -> Json:
    moe = experts.find_experts(cfg)
    assert isinstance(moe, CapacityMoeConfig)
    return bart_like.write(cfg) | {
        "encoder_sparse_step": step_of(cfg.kinds, cfg.encoder_layers),
        "decoder_sparse_step": step_of(cfg.of_decoder.kinds, cfg.decoder_layers),
        "num_experts": moe.num_experts,
        "expert_capacity": moe.capacity,
        "moe_eval_capacity_token_fraction": moe.eval_fraction,
        "router_bias": moe.router_bias,
        "normalize_router_prob_before_dropping": moe.normalize,
        "batch_prioritized_routing": moe.prioritized,
        "router_ignore_padding_tokens": not moe.skips_padding,
        "moe_token_dropout": moe.masked,
        **experts.write_router_losses(moe),
    }


PUBLISHED = Published(
    model_type="nllb-moe",
    prefix="model.",
    names=names,
    heads=weight_map.build_heads(
        "NllbMoe",
        lm=Head(
            "NllbMoeForConditionalGeneration", weight_rows(("lm_head.weight", "lm_head/kernel"))
        ),
        none=(),
    ),
    fields=bart_like.FIELDS | bart_like.ENDS,
    defaults=dict(
        d_model=1024,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=16,
        encoder_ffn_dim=4096,
        vocab_size=128112,
        decoder_start_token_id=2,
    ),
    harmless=(*bart_like.HARMLESS, "router_z_loss_coef"),  # which transformers does not compute
    fixed=bart.PUBLISHED.fixed,
    read=read,
    write=write,
    duplicates=bart_like.DUPLICATES,
    ignored=m2m_100.PUBLISHED.ignored,
)
