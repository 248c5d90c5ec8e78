"""DeepSeek-V2: attention to latent vectors, and many small experts beside those that all use.

Reference: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.
"""

import dataclasses
import math
from functools import partial

from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import experts, llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, repeat_pattern, shortest_pattern
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.weight_map import WeightRow, add_prefix, omit_prefixes, weight_rows
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.mixers.latent_attention import LatentAttentionConfig
from flaxformer_lite.nn.positions.rope import Rope

LATENT = LatentAttentionConfig()
TINY = LatentAttentionConfig(kv_rank=32, q_rank=64, content_dim=32, rotary_dim=16, value_dim=32)
BASE = llama_like.BASE | dict(
    vocab_size=102400, norm_eps=1e-6, mixer=LATENT, position=Rope(layout="interleaved"), head_dim=64
)


def sparse_after(dense: int, layers: int, moe: MoeConfig) -> ModelFields:
    """Returns the fields of a stack whose first layers have no experts."""
    if not dense:
        return {"feed_forward": moe, "pattern": ()}
    kinds = [LayerKind(feed_forward=moe if i >= dense else None) for i in range(layers)]
    return {"feed_forward": None, "pattern": shortest_pattern(kinds)}


PRESETS = {  # section 3.1.2 and appendix B
    "tiny": dict(
        d_model=128,
        num_heads=4,
        head_dim=16,
        mlp_dim=344,
        decoder_layers=4,
        mixer=TINY,
        feed_forward=MoeConfig(mlp_dim=86, shared_dim=172, normalize=False),
    ),
    "lite": dict(
        d_model=2048,
        num_heads=16,
        mlp_dim=10944,
        decoder_layers=27,
        mixer=dataclasses.replace(LATENT, q_rank=0),
        **sparse_after(
            1,
            27,
            MoeConfig(
                num_experts=64,
                experts_per_token=6,
                mlp_dim=1408,
                shared_dim=2816,
                normalize=False,
                balance=0.001,
            ),
        ),
    ),
    "236b": dict(
        d_model=5120,
        num_heads=128,
        mlp_dim=12288,
        decoder_layers=60,
        **sparse_after(
            1,
            60,
            MoeConfig(
                num_experts=160,
                experts_per_token=6,
                mlp_dim=1536,
                shared_dim=3072,
                normalize=False,
                scale=16.0,
                groups=8,
                groups_per_token=3,
                balance=0.003,
            ),
        ),
    ),
}
config = partial(build_config, "deepseek_v2", BASE, PRESETS, "lite")
Model = llama_like.SequenceModel

EXPERTS = weight_rows(
    ("mlp.gate", "mlp/router"),
    ("mlp.gate.e_score_correction_bias", "mlp/choice_bias"),
    ("mlp.experts.{e}.gate_proj", "mlp/expert_{e}/gate"),
    ("mlp.experts.{e}.up_proj", "mlp/expert_{e}/up"),
    ("mlp.experts.{e}.down_proj", "mlp/expert_{e}/down"),
    ("mlp.shared_experts.gate_proj", "mlp/shared/gate"),
    ("mlp.shared_experts.up_proj", "mlp/shared/up"),
    ("mlp.shared_experts.down_proj", "mlp/shared/down"),
)
ATTENTION = weight_rows(
    ("kv_a_proj_with_mqa", ("latent", "rotary_key"), "+OI"),
    ("kv_a_layernorm", "latent_norm"),
    ("kv_b_proj", ("key", "value"), "G+OI"),
    ("o_proj", "out"),
)
QUERY = weight_rows(("q_proj", "query"))
LATENT_QUERY = weight_rows(
    ("q_a_proj", "query_latent"), ("q_a_layernorm", "query_norm"), ("q_b_proj", "query")
)
REST = omit_prefixes(llama_like.LAYER, "self_attn.") + EXPERTS
SIZES = {
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "content_dim",
    "qk_rope_head_dim": "rotary_dim",
    "v_head_dim": "value_dim",
}


def names(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    query = LATENT_QUERY if latent_of(cfg).q_rank else QUERY
    layer = add_prefix("self_attn", "attention", ATTENTION + query) + REST
    return llama_like.decoder_body(layer)


def latent_of(cfg: ModelConfig) -> LatentAttentionConfig:
    """Returns the sizes of a model's attention."""
    if isinstance(cfg.mixer, LatentAttentionConfig):
        return cfg.mixer
    raise ConfigError(
        f"mixer={cfg.mixer}: published files of family={cfg.family!r} have latent attention; set"
        " model.mixer.name=latent_attention."
    )


def read_attention(fields: Fields) -> ModelFields:
    heads = fields.get("num_attention_heads", 128)
    if fields.get("num_key_value_heads", heads) != heads:
        raise ConfigError(
            f"config.json: num_key_value_heads={fields.values['num_key_value_heads']}: must be"
            f" num_attention_heads={heads}, as heads share one latent vector."
        )
    sizes = {ours: fields.size(name, getattr(LATENT, ours)) for name, ours in SIZES.items()}
    mixer = LatentAttentionConfig(q_rank=fields.nullable("q_lora_rank", 1536), **sizes)
    rope = read_rope(fields)
    interleaved = fields.get("rope_interleave", True)
    biased: tuple[str, ...] = ()
    if fields.get("attention_bias", False):
        biased = ("query", "key", "out") if mixer.q_rank else ("key", "out")
    return {
        "mixer": mixer,
        "head_dim": mixer.rotary_dim,
        "norm_eps": fields.get("rms_norm_eps", 1e-6),
        "position": dataclasses.replace(rope, layout="interleaved" if interleaved else "halves"),
        "attention_scale": scale_of(mixer, rope),
        "bias_at": biased,
    }


def scale_of(mixer: LatentAttentionConfig, rope: Rope) -> float | None:
    """Returns the factor on dot products, which YaRN raises; None where it is the usual one."""
    if rope.scaling != "yarn" or not rope.mscale_all_dim or rope.factor <= 1:
        return None
    return mixer.head_dim**-0.5 * (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1) ** 2


def write_attention(cfg: ModelConfig) -> Json:
    mixer = latent_of(cfg)
    assert isinstance(cfg.position, Rope)
    if cfg.attention_scale != scale_of(mixer, cfg.position):
        raise ConfigError(
            f"attention_scale={cfg.attention_scale}: published files of family={cfg.family!r} have"
            f" that of their positions, {scale_of(mixer, cfg.position)}."
        )
    return {
        "num_key_value_heads": cfg.num_heads,
        "q_lora_rank": mixer.q_rank or None,
        **{name: getattr(mixer, ours) for name, ours in SIZES.items()},
        **write_rope(cfg.position),
        "attention_bias": "out" in cfg.bias_at,
    }


def read_experts(fields: Fields, layers: int, dense: int, moe: MoeConfig) -> ModelFields:
    """Reads the experts, and how many layers before them have none.

    Args:
      fields: a published config.
      layers: number of layers.
      dense: the family's number of layers without experts.
      moe: the family's experts, whose numbers are read.
    """
    dense = fields.get("first_k_dense_replace", dense)
    if dense >= layers:
        return {"feed_forward": None, "pattern": ()}
    name = "num_local_experts" if "num_local_experts" in fields.values else "n_routed_experts"
    width = fields.size("moe_intermediate_size", moe.mlp_dim)
    kept = fields.get("topk_group", moe.groups_per_token)
    groups = fields.get("n_group", moe.groups)
    made = dataclasses.replace(
        moe,
        num_experts=fields.size(name, moe.num_experts),
        experts_per_token=fields.size("num_experts_per_tok", moe.experts_per_token),
        mlp_dim=width,
        shared_dim=width * fields.size("n_shared_experts", moe.shared_dim // moe.mlp_dim),
        scale=fields.get("routed_scaling_factor", moe.scale),
        groups=groups,
        groups_per_token=0 if kept == groups else kept,
    )
    return sparse_after(dense, layers, made)


def write_experts(cfg: ModelConfig) -> Json:
    kinds = repeat_pattern(cfg.kinds, cfg.decoder_layers)
    dense = sum((kind.feed_forward or cfg.feed_forward) is None for kind in kinds)
    if dense == cfg.decoder_layers:
        return {"first_k_dense_replace": dense}
    moe = experts.find_experts(cfg)
    width = moe.mlp_dim or cfg.mlp_dim
    if moe.shared_dim % width or not moe.shared_dim:
        raise ConfigError(
            f"shared_dim={moe.shared_dim}: published files of family={cfg.family!r} have a multiple"
            f" of mlp_dim={width}."
        )
    return {
        "first_k_dense_replace": dense,
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "n_shared_experts": moe.shared_dim // width,
        "moe_intermediate_size": width,
        "routed_scaling_factor": moe.scale,
        "n_group": moe.groups,
        "topk_group": moe.groups_per_token or moe.groups,
    }


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 32)
    method = fields.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise ConfigError(
            f"config.json: topk_method={method!r}: must be greedy or group_limited_greedy."
        )
    # Files hold groups all the same, and transformers does not read them then.
    if method == "greedy":
        fields.values |= {"n_group": None, "topk_group": None}
    moe = MoeConfig(
        num_experts=64,
        experts_per_token=6,
        # transformers' default, and no misprint of 1408.
        mlp_dim=1407,
        shared_dim=2 * 1407,
        normalize=False,
        balance=0.0,
    )
    return read_attention(fields) | read_experts(fields, layers, 0, moe)


def write(cfg: ModelConfig) -> Json:
    fields = write_attention(cfg) | write_experts(cfg)
    limited = fields.get("topk_group") != fields.get("n_group")
    return fields | {"topk_method": "group_limited_greedy" if limited else "greedy"}


PUBLISHED = llama_like.published(
    "deepseek_v2",
    defaults=llama_like.DEFAULTS,
    names=names,
    heads=llama_like.heads("DeepseekV2", only=Model.heads),
    fixed={"norm_topk_prob": False, "mlp_bias": False, "scoring_func": "softmax"},
    # transformers computes no loss of the router
    harmless=(
        "head_dim",
        "qk_head_dim",
        "output_router_logits",
        "seq_aux",
        "aux_loss_alpha",
        "n_group",
        "topk_group",
    ),
    read=read,
    write=write,
)
