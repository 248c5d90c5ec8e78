"""Values, names of weights and fields, and heads that Llama shares with families like it."""

from typing import Any

from flaxformer_lite.config import LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import weight_map
from flaxformer_lite.models.common import bert_like, gpt2_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Head,
    Published,
    WeightRow,
    add_prefix,
    attention_rows,
    weight_rows,
)
from flaxformer_lite.nn.positions.nope import Nope
from flaxformer_lite.nn.positions.rope import Rope

BASE = dict(
    vocab_size=32000,
    max_length=2048,
    position=Rope(),
    norm="rms",
    norm_eps=1e-5,
    norm_at=("in", "final"),
    activation="silu",
    mlp="gated",
    tie_embeddings=False,
)
TINY = dict(d_model=128, num_heads=4, num_kv_heads=2, mlp_dim=344, decoder_layers=4)


class Model(DecoderModel):
    frozen_padding = ("tokens",)


class LabelingModel(DecoderModel):
    """A decoder whose texts and tokens have labels."""

    heads = ("lm", "sequence_classification", "token_classification", "none")


class SequenceModel(DecoderModel):
    """A decoder whose texts have labels."""

    heads = ("lm", "sequence_classification", "none")


class LanguageModel(DecoderModel):
    """A decoder that writes only."""

    heads = ("lm", "none")


LAYER = add_prefix(
    "self_attn", "attention", attention_rows("q_proj", "k_proj", "v_proj", "o_proj")
) + weight_rows(
    ("input_layernorm", "attention_in_norm"),
    ("post_attention_layernorm", "mlp_in_norm"),
    ("mlp.gate_proj", "mlp/gate"),
    ("mlp.up_proj", "mlp/up"),
    ("mlp.down_proj", "mlp/down"),
)
ENDS = weight_rows(("embed_tokens", "token_embed"), ("norm", "decoder/final_norm"))


def decoder_body(layer: tuple[WeightRow, ...]) -> tuple[WeightRow, ...]:
    """Returns the weight rows of a decoder without its head, given the rows of one layer."""
    return ENDS + add_prefix("layers.{i}", "decoder/layer_{i}", layer)


BODY = decoder_body(LAYER)
QK_NORMS = weight_rows(
    ("self_attn.q_norm", "attention/query_norm"), ("self_attn.k_norm", "attention/key_norm")
)
BUFFERS = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
FIELDS = dict(
    hidden_size="d_model",
    intermediate_size="mlp_dim",
    num_hidden_layers="decoder_layers",
    num_attention_heads="num_heads",
    max_position_embeddings="max_length",
    hidden_act="activation",
    rms_norm_eps="norm_eps",
)
# transformers' values of fields that a config.json leaves out.
DEFAULTS = dict(
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
    max_position_embeddings=2048,
)


def heads(
    name: str, spans_prefix: str = "transformer.", only: tuple[str, ...] = ()
) -> dict[str, Head]:
    """Returns the heads of decoders that are variations of Llama.

    Args:
      name: the beginning of the names of their classes.
      spans_prefix: the prefix of the body with question answering.
      only: the heads that the family has; empty for all.
    """
    tasks: dict[str, Head | tuple] = {
        "question_answering": Head(f"{name}ForQuestionAnswering", bert_like.SPANS, spans_prefix)
    }
    every = {**gpt2_like.HEADS, "token_classification": gpt2_like.SCORE, **tasks}
    chosen = {head: every[head] for head in only or every}
    return weight_map.build_heads(name, **chosen)


def published(
    model_type: str, body: tuple[WeightRow, ...] = BODY, /, **different: Any
) -> Published:
    """Returns the published form of a variation of Llama.

    Args:
      model_type: its name in config.json.
      body: the rows of its weights.
      **different: fields of Published; what they do not say is Llama's.
    """
    common: dict[str, Any] = dict(
        prefix="model.", names=lambda cfg: body, fields=FIELDS, ignored=BUFFERS
    )
    return Published(model_type=model_type, **common | different)


def attention_biases(fields: Fields) -> tuple[str, ...]:
    """Returns the projections that have a bias: with `attention_bias` all four."""
    if not fields.get("attention_bias", False):
        return ()
    return ("query", "key", "value", "out")


def read_sizes(fields: Fields, kv_heads: int = 0, head_dim: int = 0) -> ModelFields:
    """Reads the number of key and value heads and their width, with a family's defaults.

    0 derives them. An absent norm epsilon is 1e-6, not the preset's value.
    """
    return {
        "num_kv_heads": fields.get("num_key_value_heads", kv_heads),
        "head_dim": fields.get("head_dim", head_dim),
        "norm_eps": fields.get("rms_norm_eps", 1e-6),
    }


def read_heads(fields: Fields, kv_heads: int = 0, head_dim: int = 0) -> ModelFields:
    """Reads what `read_sizes` does, and the rotary positions of all layers."""
    return read_sizes(fields, kv_heads, head_dim) | {"position": read_rope(fields)}


def write_heads(cfg: ModelConfig, **names: str) -> Json:
    """Inverts `read_heads`; `names` are field names, as in `write_rope`."""
    return {
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_width,
        **write_rope(cfg.position, **names),
    }


def read(fields: Fields) -> ModelFields:
    bias_at: tuple[str, ...] = ()
    if fields.get("attention_bias", False):
        bias_at += ("query", "key", "value", "out")
    if fields.get("mlp_bias", False):
        bias_at += ("mlp",)
    return read_heads(fields) | {"bias_at": bias_at}


def write(cfg: ModelConfig) -> Json:
    return write_heads(cfg) | {
        "attention_bias": "query" in cfg.bias_at,
        "mlp_bias": "mlp" in cfg.bias_at,
    }


def alternate_positions(*windows: int) -> tuple[LayerKind, ...]:
    """Returns the kinds of layers with these windows; 0 sees everything and has no positions."""
    kinds = []
    for window in windows:
        kinds.append(LayerKind(window=window, position=None if window else Nope()))
    return tuple(kinds)
