"""T5Gemma: an encoder-decoder of Gemma 2's layers, whose sides may differ in size.

The encoder sees both ways, and each side has its own table of tokens.

Reference: Zhang et al., "Encoder-Decoder Gemma: Improving the Quality-Efficiency Trade-Off via
Adaptation" (2025).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.models import gemma, gemma2, weight_map
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    omit_fields,
    read_windows,
    repeat_pattern,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel
from flaxformer_lite.models.skeletons.inputs import last_token
from flaxformer_lite.models.weight_map import Head, Published, WeightRow, add_prefix, weight_rows

START_ID = 2  # the beginning of a text, which starts the decoder
DEFAULT_WINDOW = 4096  # written where no layer slides
BASE = gemma2.BASE | dict(
    windows=(4097, 0),
    decoder_windows=(4096, 0),
    decoder_table=True,
    decoder_start_token_id=START_ID,
    dropout_at=("embed", "attention", "mlp", "branch", "final"),
)


def _sizes(encoder: ModelFields, decoder: ModelFields) -> ModelFields:
    sizes: ModelFields = dict(encoder) | {"encoder_layers": encoder["decoder_layers"]}
    for name, size in decoder.items():
        if name == "decoder_layers":
            sizes[name] = size
        elif size != encoder[name]:
            sizes[f"decoder_{name}"] = size
    return sizes


SMALL = gemma2.PRESETS["2b"]
LARGE = gemma2.PRESETS["9b"]
TINY = gemma2.PRESETS["tiny"] | dict(decoder_layers=2)
PRESETS = {
    "tiny": _sizes(TINY, TINY) | dict(windows=(65, 0), decoder_windows=(64, 0)),
    "2b_2b": _sizes(SMALL, SMALL),
    "9b_2b": _sizes(LARGE, SMALL),
    "9b_9b": _sizes(LARGE, LARGE),
}
config = partial(build_config, "t5gemma", BASE, PRESETS, "2b_2b")


class Model(EncoderDecoderModel):
    """T5Gemma; the encoder hides padding also if there is no attention mask.

    Classifiers shift the input right for the decoder, and read it.
    """

    heads = ("lm", "none", "encoder", "sequence_classification", "token_classification")
    encoder_heads = ("encoder",)
    scaled_vectors = ("encoder", "decoder")

    def encode(
        self,
        input_ids=None,
        *,
        inputs_embeds=None,
        attention_mask=None,
        position_ids=None,
        segment_ids=None,
        packing=None,
    ) -> jax.Array:
        padding = self.cfg.pad_token_id
        has_no_mask = attention_mask is None and segment_ids is None
        if has_no_mask and input_ids is not None and padding is not None:
            attention_mask = jnp.asarray(input_ids) != padding
        return super().encode(
            input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            segment_ids=segment_ids,
            packing=packing,
        )

    def shift_right(self, input_ids) -> jax.Array:
        if self.cfg.head in ("lm", "none"):
            return super().shift_right(input_ids)
        start = self.cfg.decoder_start_token_id
        start_B1 = jnp.full_like(input_ids[:, :1], START_ID if start is None else start)
        return jnp.concatenate([start_B1, input_ids[:, :-1]], axis=1)

    def on_top(self, x_BTD: jax.Array, input_ids) -> dict[str, jax.Array]:
        if self.cfg.head == "token_classification":
            return {"logits": self.classifier(x_BTD)}
        if self.cfg.head != "sequence_classification":
            return super().on_top(x_BTD, input_ids)
        last_B = last_token(jnp.asarray(input_ids), self.cfg.pad_token_id)
        shifted_B = jnp.minimum(last_B + 1, x_BTD.shape[1] - 1)
        x_B1D = jnp.take_along_axis(x_BTD, shifted_B[:, None, None], axis=1)
        return {"logits": self.classifier(x_B1D)[:, 0]}


NORMS = weight_rows(
    ("pre_self_attn_layernorm", "attention_in_norm"),
    ("post_self_attn_layernorm", "attention_branch_norm"),
    ("pre_feedforward_layernorm", "mlp_in_norm"),
    ("post_feedforward_layernorm", "mlp_branch_norm"),
)
PROJECTIONS = weight_map.attention_rows("q_proj", "k_proj", "v_proj", "o_proj")
MLP = add_prefix(
    "mlp", "mlp", weight_rows(("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"))
)
LAYER = (*add_prefix("self_attn", "attention", PROJECTIONS), *MLP, *NORMS)
CROSS = (
    *add_prefix("cross_attn", "cross_attention", PROJECTIONS),
    *weight_rows(
        ("pre_cross_attn_layernorm", "cross_attention_in_norm"),
        ("post_cross_attn_layernorm", "cross_attention_branch_norm"),
    ),
)
BODY: tuple[WeightRow, ...] = (
    *weight_rows(("encoder.embed_tokens", "token_embed"), ("encoder.norm", "encoder/final_norm")),
    *add_prefix("encoder.layers.{i}", "encoder/layer_{i}", LAYER),
    *weight_rows(
        ("decoder.embed_tokens", "decoder_token_embed"), ("decoder.norm", "decoder/final_norm")
    ),
    *add_prefix("decoder.layers.{i}", "decoder/layer_{i}", LAYER + CROSS),
)

# Fields of a side that may differ, with transformers' values of absent ones, and ours.
SIDE: dict[str, tuple[Any, str]] = {
    "hidden_size": (2304, "d_model"),
    "intermediate_size": (9216, "mlp_dim"),
    "num_hidden_layers": (26, "layers"),
    "num_attention_heads": (8, "num_heads"),
    "num_key_value_heads": (4, "num_kv_heads"),
    "head_dim": (256, "head_dim"),
    "vocab_size": (256000, "vocab_size"),
    "sliding_window": (4096, ""),
    "layer_types": (None, ""),
}
# those that must not, as one value serves both
SAME = {
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "rope_parameters": None,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "pad_token_id": 0,
}
OUTER = ("encoder", "decoder", "vocab_size")


def flatten(published: Json) -> Json:
    """Returns the encoder's fields, and the decoder's sizes as `decoder_NAME`.

    Raises:
      ConfigError: the sides differ in another field.
    """
    encoder = published.get("encoder") or {}
    decoder = published.get("decoder") or {}
    for name, absent in SAME.items():
        ours = encoder.get(name, absent)
        others = decoder.get(name, absent)
        if ours != others:
            raise ConfigError(
                f"config.json: encoder.{name}={quote_value(ours)},"
                f" decoder.{name}={quote_value(others)}: must be the same here."
            )
    flat = dict(SAME) | encoder
    for name, (absent, _) in SIDE.items():
        flat.setdefault(name, absent)
        flat[f"decoder_{name}"] = decoder.get(name, absent)
    flat["decoder_bos_token_id"] = decoder.get("bos_token_id", START_ID)
    cap = "final_logit_softcapping"
    flat[cap] = decoder.get(cap, BASE["logit_softcap"])
    return flat | omit_fields(published, *OUTER)


def nest(flat: Json) -> Json:
    """Inverts `flatten`."""
    inner = {*SAME, *SIDE, "final_logit_softcapping", "bos_token_id"}
    encoder = {name: value for name, value in flat.items() if name in inner}
    prefix = "decoder_"
    decoder = {k.removeprefix(prefix): v for k, v in flat.items() if k.startswith(prefix)}
    outer = {k: v for k, v in flat.items() if k not in inner and not k.startswith(prefix)}
    kept = {name: flat[name] for name in ("pad_token_id",) if name in flat}
    kept |= {"bos_token_id": decoder["bos_token_id"], "vocab_size": decoder["vocab_size"]}
    return outer | kept | {"encoder": encoder, "decoder": encoder | decoder}


def read(fields: Fields) -> ModelFields:
    """Reads both sides: the encoder's windows reach as far to each side as the decoder's back."""
    options: ModelFields = {}
    for side, prefix in (("encoder", ""), ("decoder", "decoder_")):
        sizes = {}
        for name, (absent, ours) in SIDE.items():
            if ours:
                sizes[ours] = fields.size(f"{prefix}{name}", absent)
        layers = sizes.pop("layers")
        window = fields.get(f"{prefix}sliding_window", 4096)
        kinds = Fields({"layer_types": fields.get(f"{prefix}layer_types", kind=list)})
        windows = read_windows(kinds, layers, lambda i: i % 2 == 0, window)
        if side == "encoder":
            windows = tuple(w + 1 if w else 0 for w in windows)
        options |= {f"{prefix}{ours}": size for ours, size in sizes.items()}
        options |= {f"{side}_layers": layers, f"{prefix}windows": windows}
    if options["decoder_vocab_size"] == options["vocab_size"]:
        options["decoder_vocab_size"] = 0
    return (
        options
        | gemma2.read_caps(fields)
        | {
            "norm_eps": fields.get("rms_norm_eps", 1e-6),
            "position": read_rope(fields),
            "attention_scale": fields.size("query_pre_attn_scalar", 256.0) ** -0.5,
            "decoder_start_token_id": fields.get("decoder_bos_token_id", START_ID),
        }
    )


def write(cfg: ModelConfig) -> Json:
    decoder = cfg.of_decoder
    flat: Json = {}
    for side, of_side, prefix in (("encoder", cfg, ""), ("decoder", decoder, "decoder_")):
        layers = getattr(cfg, f"{side}_layers")
        kinds = []
        for window in repeat_pattern(of_side.windows, layers):
            kinds.append("sliding_attention" if window else "full_attention")
        window = max(of_side.windows) or DEFAULT_WINDOW
        if side == "encoder" and any(of_side.windows):
            window -= 1
        flat |= {
            f"{prefix}hidden_size": of_side.d_model,
            f"{prefix}intermediate_size": of_side.mlp_dim,
            f"{prefix}num_hidden_layers": layers,
            f"{prefix}num_attention_heads": of_side.num_heads,
            f"{prefix}num_key_value_heads": of_side.kv_heads,
            f"{prefix}head_dim": of_side.head_width,
            f"{prefix}vocab_size": of_side.vocab_size,
            f"{prefix}sliding_window": window,
            f"{prefix}layer_types": kinds,
        }
    start = START_ID if cfg.decoder_start_token_id is None else cfg.decoder_start_token_id
    return (
        flat
        | write_rope(cfg.position)
        | {
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": cfg.max_length,
            **gemma.write_scale(cfg),
            "decoder_bos_token_id": start,
            "is_encoder_decoder": cfg.head != "encoder",
            **gemma2.write_caps(cfg),
        }
    )


SCORE = weight_rows(("score.out_proj", "classifier/dense"))
PUBLISHED = Published(
    model_type="t5gemma",
    prefix="model.",
    names=lambda cfg: BODY,
    heads={
        "lm": Head(
            "T5GemmaForConditionalGeneration",
            weight_rows(("lm_head.out_proj.weight", "lm_head/kernel")),
        ),
        "none": Head("T5GemmaModel"),
        "encoder": Head("T5GemmaEncoderModel", prefix="", fixed={"is_encoder_decoder": False}),
        "sequence_classification": Head("T5GemmaForSequenceClassification", SCORE),
        "token_classification": Head("T5GemmaForTokenClassification", SCORE),
    },
    fields=dict(
        hidden_activation="activation",
        rms_norm_eps="norm_eps",
        max_position_embeddings="max_length",
        dropout_rate="dropout",
    ),
    fixed={"attention_bias": False, "is_encoder_decoder": True},
    defaults=dict(is_encoder_decoder=True, tie_word_embeddings=True),
    harmless=("is_decoder", "classifier_dropout_rate", "cross_attention_hidden_size"),
    flatten=flatten,
    nest=nest,
    read=read,
    write=write,
    ignored=(r"(model\.)?(encoder|decoder)\.rotary_emb\.inv_freq",),
)
