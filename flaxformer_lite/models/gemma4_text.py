"""Gemma 4: Gemma 3 with wide heads in its full layers, and layers that share keys and values.

Values are normalized, and may be the keys; a second table gives each layer a vector of each token;
experts may stand beside the feed-forward. A text is read from left to right, with or without
images in the training.

Reference: transformers 5.23.0, modeling_gemma4.py; Gemma Team, "Gemma 4" (2026).
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
from jax.typing import ArrayLike

from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig
from flaxformer_lite.config.parts import PartitionRules
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.models import gemma, gemma2
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    activation_of,
    layer_types,
    read_windows,
    repeat_pattern,
    shortest_pattern,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope_of, write_ropes
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import add_prefix, weight_rows
from flaxformer_lite.nn.feed_forwards.layer_input import LayerInputConfig
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.feed_forwards.normed_moe import NormedMoeConfig
from flaxformer_lite.nn.mixers.shared_keys import SharedKeysConfig
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.embed import TokenEmbed
from flaxformer_lite.nn.modules.layer_inputs import LayerInputs
from flaxformer_lite.nn.positions.rope import Rope

FULL_LAYER_PERIOD = 6  # the last of so many layers sees everything
LOCAL = Rope(base=10000.0)
GLOBAL = Rope(base=1000000.0, scaling="proportional", fraction=0.25)
ROPES = {"full_attention": GLOBAL, "sliding_attention": LOCAL}
KEYS = SharedKeysConfig(value_norm="rms_no_affine")
# the norms around each part; experts have their own in place of `mlp_in`
NORM_AT = ("attention_in", "mlp_in", "branch")


def share_keys(windows: Sequence[int], shared: int) -> list[str]:
    """Returns whose keys each layer reads: the last `shared` ones read the last layer like it.

    Raises:
      ConfigError: no layer before them has the window of one of them.
    """
    own = list(windows[: len(windows) - shared])
    if not shared:
        return ["own"] * len(windows)
    if set(own) != set(windows):
        raise ConfigError(
            f"config.json: num_kv_shared_layers={shared}: each type of layer needs one before them"
            " whose keys and values they read."
        )
    last = {window: i for i, window in enumerate(own)}
    keys = []
    for i, window in enumerate(own):
        keys.append("kept" if last[window] == i else "own")
    return keys + ["earlier"] * shared


def make_kind(window: int, **options: Any) -> LayerKind:
    """Returns the kind of a layer with this window; 0 sees everything."""
    position = None
    if window:
        position = LOCAL
    return LayerKind(
        **{
            "window": window,
            "position": position,
            "mixer": KEYS,
            "norm_at": NORM_AT,
            "output_scale": True,
            **options,
        }
    )


BASE = gemma.BASE | dict(
    vocab_size=262144,
    max_length=131072,
    norm="rms",
    norm_at=("in", "branch", "final"),
    qk_norm="rms",
    attention_scale=1.0,
    position=GLOBAL,
)
TINY_INPUT = LayerInputConfig(width=16)
PRESETS = {
    "tiny": llama_like.TINY
    | dict(
        head_dim=32,
        pattern=(
            make_kind(64, after=TINY_INPUT),
            make_kind(0, after=TINY_INPUT),
        ),
    ),
    # the values of a Gemma4TextConfig, without the layers' own inputs
    "30l": dict(
        d_model=2304,
        num_heads=8,
        num_kv_heads=4,
        mlp_dim=9216,
        decoder_layers=30,
        pattern=(*[make_kind(512)] * (FULL_LAYER_PERIOD - 1), make_kind(0, head_dim=512)),
    ),
}
config = partial(build_config, "gemma4_text", BASE, PRESETS, "30l")


class Model(DecoderModel):
    heads = ("lm", "none")

    def setup(self) -> None:
        super().setup()
        cfg = self.cfg
        width = input_width(cfg)
        if width:
            tokens = build_layers.embed(cfg, cfg.decoder_layers * width)
            tokens = dataclasses.replace(tokens, scale=width**0.5)
            self.layer_inputs = LayerInputs(tokens, width, cfg.norm_config, self.execution)

    @nn.nowrap
    def add_inputs(self, context: Context, input_ids: jax.Array, x_BTD: jax.Array) -> Context:
        if not input_width(self.cfg):
            return context
        return context.replace(inputs_BTLP=self.layer_inputs(input_ids, x_BTD))

    def place_vectors(self, vectors: ArrayLike, stack: str, table: TokenEmbed) -> jax.Array:
        if input_width(self.cfg):
            raise ConfigError(
                "inputs_embeds: gemma4_text with inputs of each layer looks for a token by its id;"
                " pass input_ids."
            )
        return super().place_vectors(vectors, stack, table)

    @classmethod
    def layer_rules(cls, cfg: ModelConfig) -> PartitionRules:
        rules = super().layer_rules(cfg)
        if input_width(cfg):
            rules += ((r"layer_inputs/project/kernel$", ("fsdp", None, None)),)
        return rules


def input_width(cfg: ModelConfig) -> int:
    """Returns the width of the vectors that each layer reads beside the stream; 0 for none."""
    part = cfg.kinds[0].after
    if isinstance(part, LayerInputConfig):
        return part.width
    return 0


LAYER = (
    gemma2.LAYER
    + llama_like.QK_NORMS
    + weight_rows(
        ("layer_scalar", "output_scale"),
        ("per_layer_input_gate", "layer_input/gate"),
        ("per_layer_projection", "layer_input/out"),
        ("post_per_layer_input_norm", "layer_input_branch_norm"),
        ("pre_feedforward_layernorm", "mlp/shared_in_norm"),
        ("mlp.gate_proj", "mlp/shared/gate"),
        ("mlp.up_proj", "mlp/shared/up"),
        ("mlp.down_proj", "mlp/shared/down"),
        ("post_feedforward_layernorm_1", "mlp/shared_out_norm"),
        ("pre_feedforward_layernorm_2", "mlp/experts_in_norm"),
        ("post_feedforward_layernorm_2", "mlp/experts_out_norm"),
        ("router.scale", "mlp/router_norm/scale"),
        ("router.per_expert_scale", "mlp/expert_scale"),
        ("router.proj", "mlp/router"),
        (
            "experts.gate_up_proj",
            ("mlp/expert_{e}/gate/kernel", "mlp/expert_{e}/up/kernel"),
            "X2OI",
        ),
        ("experts.down_proj", "mlp/expert_{e}/down/kernel", "XOI"),
    )
)
INPUTS = weight_rows(
    ("embed_tokens_per_layer", "layer_inputs/token_embed"),
    ("per_layer_model_projection", "layer_inputs/project"),
    ("per_layer_projection_norm", "layer_inputs/norm"),
)
BODY = llama_like.ENDS + INPUTS + add_prefix("layers.{i}", "decoder/layer_{i}", LAYER)


def read_ropes(fields: Fields) -> dict[str, Rope]:
    """Reads the positions by type of layer."""
    if not fields.get("rope_parameters", {}):
        return ROPES
    return {name: read_rope_of(fields, name, rope.base) for name, rope in ROPES.items()}


def read_head_sizes(fields: Fields, windows: Sequence[int]) -> list[ModelFields]:
    """Reads the sizes of heads of each layer that differ from the model's.

    `per_layer_config` names them by layer; without it `global_head_dim` and
    `num_global_key_value_heads` are those of full layers.
    """
    wide = fields.get("global_head_dim", 512)
    few = fields.get("num_global_key_value_heads", 0)
    by_layer = fields.get("per_layer_config", kind=dict)
    if by_layer is None:
        full = {"head_dim": wide}
        if few and fields.get("attention_k_eq_v", False):
            full["num_key_value_heads"] = few
        by_layer = {i: full for i, window in enumerate(windows) if not window}
    try:
        by_layer = {int(i): sizes for i, sizes in by_layer.items()}  # `5`, or `05` of 30 layers
    except ValueError:
        raise ConfigError(
            "config.json: per_layer_config: must name layers by their numbers."
        ) from None
    common = {
        "head_dim": fields.size("head_dim", 256),
        "num_key_value_heads": fields.size("num_key_value_heads", 4),
    }
    sizes = []
    for i in range(len(windows)):
        inner = Fields(by_layer.get(i, {}), f"per_layer_config.{i}.")
        own: ModelFields = {}
        for name, ours in (("head_dim", "head_dim"), ("num_key_value_heads", "num_kv_heads")):
            size = inner.size(name, common[name])
            if size != common[name]:
                own[ours] = size
        for name in sorted(set(inner.values) - inner.read):
            raise ConfigError(
                f"config.json: per_layer_config.{i}.{name}={quote_value(inner.values[name])}: only"
                " head_dim and num_key_value_heads may differ between layers."
            )
        sizes.append(own)
    return sizes


def read_parts(fields: Fields) -> ModelFields:
    """Reads the parts that all layers have: experts, and their own inputs."""
    parts: ModelFields = {}
    if fields.get("enable_moe_block", False):
        parts["norm_at"] = tuple(slot for slot in NORM_AT if slot != "mlp_in")
        parts["feed_forward"] = NormedMoeConfig(
            num_experts=fields.size("num_experts", 0),
            experts_per_token=fields.size("top_k_experts", 0),
            mlp_dim=fields.size("moe_intermediate_size", 0),
            shared_dim=fields.size("intermediate_size", 9216),
            norm_eps=fields.get("rms_norm_eps", 1e-6),
            balance=0.0,
        )
    width = fields.get("hidden_size_per_layer_input", 256)
    rows = fields.get("vocab_size_per_layer_input", 262144)
    if width:
        parts["after"] = LayerInputConfig(width=width)
        vocab_size = fields.get("vocab_size", 262144)
        if rows < vocab_size:
            raise ConfigError(
                f"config.json: vocab_size_per_layer_input={rows}: must be at least"
                f" vocab_size={vocab_size}, as each token has a row of both tables."
            )
    return parts


def leave_out_rows(tensors: dict) -> dict:
    """Leaves out the rows of the second table that no token has."""
    second = "embed_tokens_per_layer.weight"
    kept = dict(tensors)
    for name, tensor in tensors.items():
        first = tensors.get(name.removesuffix(second) + "embed_tokens.weight")
        if name.endswith(second) and first is not None and len(first.shape) == 2:
            rows = tensor.array[: first.shape[0]]
            kept[name] = dataclasses.replace(tensor, array=rows)
    return kept


def widen(experts: NormedMoeConfig | None, wide: int, act: str) -> MlpConfig | NormedMoeConfig:
    """Returns a feed-forward of this width, or experts beside one."""
    if experts is not None:
        return dataclasses.replace(experts, shared_dim=wide)
    return MlpConfig(mlp_dim=wide, activation=activation_of("hidden_activation", act), gated=True)


def read(fields: Fields) -> ModelFields:
    if fields.get("use_bidirectional_attention") not in (None, "vision"):
        fields.require("use_bidirectional_attention", "vision")
    count = fields.get("num_hidden_layers", 30)
    window = fields.size("sliding_window", 512)
    repeated = read_windows(fields, count, lambda i: (i + 1) % FULL_LAYER_PERIOD != 0, window)
    windows = repeat_pattern(repeated, count)
    windows[-1] = 0  # as transformers does, with a warning
    ropes = read_ropes(fields)
    parts = read_parts(fields)
    eps = fields.get("rms_norm_eps", 1e-6)
    keys = share_keys(windows, fields.get("num_kv_shared_layers", 0))
    tied = fields.get("attention_k_eq_v", False)
    twice = fields.get("use_double_wide_mlp", False)
    wide = 2 * fields.size("intermediate_size", 9216)
    act = fields.get("hidden_activation", "gelu_pytorch_tanh")
    sizes = read_head_sizes(fields, windows)
    kinds = []
    for i, window in enumerate(windows):
        own = parts | sizes[i]
        if window:
            own["position"] = ropes["sliding_attention"]
        own["mixer"] = dataclasses.replace(
            KEYS,
            keys=keys[i],
            values_are_keys=tied and not window and keys[i] != "earlier",
            norm_eps=eps,
        )
        if twice and keys[i] == "earlier":
            own["feed_forward"] = widen(parts.get("feed_forward"), wide, act)
        kinds.append(make_kind(window, **own))
    return llama_like.read_sizes(fields, kv_heads=4, head_dim=256) | {
        "position": ropes["full_attention"],
        "pattern": shortest_pattern(kinds),
        "logit_softcap": fields.get("final_logit_softcapping", 0.0),
        "bias_at": llama_like.attention_biases(fields),
    }


def write(cfg: ModelConfig) -> Json:
    """Writes the sizes of heads as Gemma 4's files name them, and as transformers 5.23 does."""
    layers = [kind for _, kind in cfg.layers]
    mixers = [kind.mixer for kind in layers if isinstance(kind.mixer, SharedKeysConfig)]
    if len(mixers) < len(layers):
        raise ConfigError(
            f"mixer: published files of family={cfg.family!r} have the keys of shared_keys; give"
            " every kind in model.pattern that mixer."
        )
    by_layer: dict[str, Json] = {}
    full = cfg
    local = LOCAL
    window = 512
    for i, (seen, kind) in enumerate(cfg.layers):
        own = {}
        if seen.head_width != cfg.head_width:
            own["head_dim"] = seen.head_width
        if seen.kv_heads != cfg.kv_heads:
            own["num_key_value_heads"] = seen.kv_heads
        if kind.window:
            window = kind.window
            local = kind.position or cfg.position
        else:
            full = seen
        if own:
            by_layer[str(i)] = own
    keys = [mixer.keys for mixer in mixers]
    widths = [
        kind.feed_forward.mlp_dim for kind in layers if isinstance(kind.feed_forward, MlpConfig)
    ]
    moes = [kind.feed_forward for kind in layers if isinstance(kind.feed_forward, NormedMoeConfig)]
    widths += [moe.shared_dim for moe in moes]
    written: Json = {
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_width,
        "global_head_dim": full.head_width,
        "num_global_key_value_heads": full.kv_heads,
        "per_layer_config": by_layer,
        **gemma.write_activation(cfg, "hidden_activation"),
        **write_ropes({"full_attention": cfg.position, "sliding_attention": local}),
        "sliding_window": window,
        "layer_types": layer_types(cfg),
        "attention_bias": "query" in cfg.bias_at,
        "attention_k_eq_v": any(mixer.values_are_keys for mixer in mixers),
        "num_kv_shared_layers": keys.count("earlier"),
        "use_double_wide_mlp": 2 * cfg.mlp_dim in widths,
        "hidden_size_per_layer_input": input_width(cfg),
        "vocab_size_per_layer_input": cfg.vocab_size,
        "final_logit_softcapping": cfg.logit_softcap or None,
        "enable_moe_block": bool(moes),
    }
    if moes:
        written |= {
            "num_experts": moes[0].num_experts,
            "top_k_experts": moes[0].experts_per_token,
            "moe_intermediate_size": moes[0].mlp_dim or cfg.mlp_dim,
        }
    return written


PUBLISHED = llama_like.published(
    "gemma4_text",
    BODY,
    defaults=dict(
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=30,
        num_attention_heads=8,
        max_position_embeddings=131072,
    ),
    heads={
        **llama_like.heads("Gemma4", only=("lm",)),
        **llama_like.heads("Gemma4Text", only=("none",)),
    },
    fields=gemma2.FIELDS,
    harmless=("num_experts", "top_k_experts", "moe_intermediate_size"),
    read=read,
    write=write,
    arrange=leave_out_rows,
)
