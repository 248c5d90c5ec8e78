"""Values, names of weights and fields, and heads that T5 shares with families like it."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import weight_map
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import ACTIVATION_NAMES, Fields, ModelFields, activation_of
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel
from flaxformer_lite.models.weight_map import Head, WeightRow, add_prefix, weight_rows
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets

BASE = dict(
    vocab_size=32128,
    max_length=512,
    position=T5Buckets(),
    norm="rms",
    norm_at=("in", "final"),
    activation="relu",
    attention_scale=1.0,
    logit_power=-0.5,
    dropout=0.1,
    dropout_at=("embed", "attention", "mlp", "branch", "final"),
    init="fan_in",
)
V1_1 = dict(activation="gelu_tanh", mlp="gated", tie_embeddings=False, logit_power=0.0, dropout=0.0)


def _sizes(d_model: int, num_heads: int, head_dim: int, mlp_dim: int, layers: int) -> dict:
    sizes = dict(d_model=d_model, num_heads=num_heads, head_dim=head_dim, mlp_dim=mlp_dim)
    return sizes | dict(encoder_layers=layers, decoder_layers=layers)


PRESETS = {
    "tiny": _sizes(128, 4, 32, 512, 2),
    "small": _sizes(512, 8, 64, 2048, 6),
    "base": _sizes(768, 12, 64, 3072, 12),
    "large": _sizes(1024, 16, 64, 4096, 24),
    "3b": _sizes(1024, 32, 128, 16384, 24),
    "11b": _sizes(1024, 128, 128, 65536, 24),
    "v1_1_tiny": _sizes(128, 4, 32, 256, 2) | V1_1,
    "v1_1_small": _sizes(512, 6, 64, 1024, 8) | V1_1,
    "v1_1_base": _sizes(768, 12, 64, 2048, 12) | V1_1,
    "v1_1_large": _sizes(1024, 16, 64, 2816, 24) | V1_1,
    "v1_1_xl": _sizes(2048, 32, 64, 5120, 24) | V1_1,
    "v1_1_xxl": _sizes(4096, 64, 64, 10240, 24) | V1_1,
}
# the ids that start the decoder and end an input, if the config names none
START_ID = 0
END_ID = 1


class Model(EncoderDecoderModel):
    """T5; classifiers shift the input right for the decoder if decoder_input_ids are not given."""

    heads: ClassVar[tuple[str, ...]] = (
        "lm",
        "none",
        "encoder",
        "sequence_classification",
        "token_classification",
        "question_answering",
    )

    def shift_right(self, input_ids) -> jax.Array:
        if self.cfg.head in ("lm", "none"):
            return super().shift_right(input_ids)
        start_B1 = jnp.full_like(input_ids[:, :1], self.cfg.decoder_start_token_id or START_ID)
        return jnp.concatenate([start_B1, input_ids[:, :-1]], axis=1)

    @property
    def end_token(self) -> int:
        return END_ID if self.cfg.eos_token_id is None else self.cfg.eos_token_id


ATTENTION = weight_map.attention_rows("q", "k", "v", "o")
FIXED = {"is_decoder": False}
HARMLESS = ("n_positions", "scalable_attention", "scale_decoder_outputs")
DUPLICATES = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
}
UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
FIELDS = dict(
    d_model="d_model",
    d_kv="head_dim",
    d_ff="mlp_dim",
    num_layers="encoder_layers",
    num_heads="num_heads",
    layer_norm_epsilon="norm_eps",
    dropout_rate="dropout",
)


def feed_forward_rows(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    """Returns the weight rows of a feed-forward layer, gated or not."""
    if cfg.mlp == "gated":
        return weight_rows(("wi_0", "gate"), ("wi_1", "up"), ("wo", "down"))
    return weight_rows(("wi", "up"), ("wo", "down"))


def names(
    cfg: ModelConfig,
    encoder_attention: str = "SelfAttention",
    feed_forward: str = "DenseReluDense",
    experts: tuple[WeightRow, ...] = (),
) -> tuple[WeightRow, ...]:
    """Returns the weight rows of both stacks.

    layer.0 is self-attention, a decoder's layer.1 cross-attention, and the last one the
    feed-forward, with the rows of its experts if it has any.
    """
    listed = weight_rows(("shared", "token_embed"), ("lm_head.weight", "lm_head/kernel"))
    for side, mlp, attention in (
        ("encoder", "layer.1", encoder_attention),
        ("decoder", "layer.2", "SelfAttention"),
    ):
        table = f"{attention}.relative_attention_bias.weight"
        layer = weight_rows(
            ("layer.0.layer_norm", "attention_in_norm"),
            (f"layer.0.{table}", "attention/position/relative"),
            (f"{mlp}.layer_norm", "mlp_in_norm"),
        )
        layer += add_prefix(f"layer.0.{attention}", "attention", ATTENTION)
        layer += add_prefix(f"{mlp}.{feed_forward}", "mlp", feed_forward_rows(cfg) + experts)
        if side == "decoder":
            layer += weight_rows(("layer.1.layer_norm", "cross_attention_in_norm"))
            layer += add_prefix("layer.1.EncDecAttention", "cross_attention", ATTENTION)
        listed += add_prefix(f"{side}.block.{{i}}", f"{side}/layer_{{i}}", layer)
        listed += weight_rows(
            (f"{side}.final_layer_norm", f"{side}/final_norm"),
            (f"{side}.block.0.layer.0.{table}", f"{side}/position/relative"),
        )
    return listed


def read_sizes(fields: Fields) -> ModelFields:
    """Reads the fields that T5, mT5 and UMT5 share.

    They are the decoder's depth, the buckets, and the kind of feed-forward.
    """
    projection = fields.get("feed_forward_proj", "relu")
    gated = projection.startswith("gated-")
    usual = projection.removeprefix("gated-")
    if projection == "gated-gelu":
        usual = "gelu_new"
    name = fields.get("dense_act_fn", usual)
    fields.require("is_gated_act", gated)
    buckets = T5Buckets(
        num_buckets=fields.get("relative_attention_num_buckets", 32),
        max_distance=fields.get("relative_attention_max_distance", 128),
    )
    start = fields.get("decoder_start_token_id", START_ID)
    pads = fields.get("pad_token_id", START_ID) == start  # None means the padding id
    end = fields.get("eos_token_id", END_ID)
    return {
        "decoder_start_token_id": None if start == START_ID and pads else start,
        "eos_token_id": None if end == END_ID else end,
        "decoder_layers": fields.get("num_decoder_layers", fields.get("num_layers", 6)),
        "mlp": "gated" if gated else "plain",
        "activation": activation_of("feed_forward_proj", name),
        "position": buckets,
    }


def projection(cfg: ModelConfig) -> str:
    """Returns `feed_forward_proj`, the kind of feed-forward."""
    name = ACTIVATION_NAMES[cfg.activation][0]
    if cfg.mlp != "gated":
        return name
    # "gated-gelu" has always meant the tanh form, so the exact form needs its second name.
    return "gated-" + {"gelu_tanh": "gelu", "gelu": "gelu_python"}.get(cfg.activation, name)


def write_sizes(cfg: ModelConfig) -> Json:
    return {
        "num_decoder_layers": cfg.decoder_layers,
        "feed_forward_proj": projection(cfg),
        "relative_attention_num_buckets": cfg.position.num_buckets,
        "relative_attention_max_distance": cfg.position.max_distance,
        "is_encoder_decoder": cfg.head != "encoder",
        "decoder_start_token_id": cfg.decoder_start_token_id or START_ID,
        "eos_token_id": END_ID if cfg.eos_token_id is None else cfg.eos_token_id,
    }


def read(fields: Fields) -> ModelFields:
    """Reads T5's fields.

    T5 1.0 scales the decoder's output down before its tied table; 1.1 and Flan do not.
    """
    tied = fields.get("tie_word_embeddings", True)
    # transformers takes null for false, unlike a field that is not there.
    scaled = fields.get("scale_decoder_outputs", tied if absent(fields) else False)
    return read_sizes(fields) | {"logit_power": -0.5 if scaled else 0.0}


def absent(fields: Fields) -> bool:
    return "scale_decoder_outputs" not in fields.values


def write(cfg: ModelConfig) -> Json:
    scaled = bool(cfg.logit_power)
    written = write_sizes(cfg)
    if scaled != cfg.tie_embeddings:
        written["scale_decoder_outputs"] = scaled
    return written


SEQUENCE = weight_rows(
    ("classification_head.dense", "pooler/dense"),
    ("classification_head.out_proj", "classifier/dense"),
)


def heads(name: str) -> dict[str, Head]:
    """Returns T5's heads, for classes called `name`; also used by models that only renamed it."""
    return weight_map.build_heads(
        name,
        lm=Head(f"{name}ForConditionalGeneration"),
        none=(),
        encoder=(),
        question_answering=bert_like.SPANS,
        sequence_classification=Head(f"{name}ForSequenceClassification", SEQUENCE, "transformer."),
        token_classification=Head(
            f"{name}ForTokenClassification", bert_like.CLASSIFIER, "transformer."
        ),
    )
