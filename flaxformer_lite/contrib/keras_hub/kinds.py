"""The families of KerasHub that are read: their configs, and the names of their layers' arrays.

Reference: keras_hub/src/models/*/*_backbone.py, and keras_hub/src/utils/transformers, whose
converters name the same matrices in both libraries.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.pretrained.safetensors import WeightsError

UNUSED_FIELDS = ("name", "trainable", "dtype", "dropout")


@dataclasses.dataclass(frozen=True)
class Row:
    """The module of transformers for a layer of KerasHub.

    Attributes:
      published: its name.
      layout: of its first array, a kernel or table.
      arrays: the name and the layout of each array; () for a weight and a bias.
    """

    published: str
    layout: str = "in"
    arrays: tuple[tuple[str, str], ...] = ()

    def array(self, number: int) -> tuple[str, str] | None:
        """Returns the full name and the layout of an array; None if there is no such array."""
        arrays = self.arrays or (("weight", self.layout), ("bias", "bias"))
        if number >= len(arrays):
            return None
        name, layout = arrays[number]
        return (name if "." in name else f"{self.published}.{name}"), layout


def _norm(published: str) -> Row:
    return Row(published, "as_is")


def _table(published: str) -> Row:
    return Row(published, "as_is")


BERT_LAYER = {
    "_self_attention_layer/query_dense": Row("attention.self.query"),
    "_self_attention_layer/key_dense": Row("attention.self.key"),
    "_self_attention_layer/value_dense": Row("attention.self.value"),
    "_self_attention_layer/output_dense": Row("attention.output.dense", "out"),
    "_self_attention_layer_norm": _norm("attention.output.LayerNorm"),
    "_feedforward_intermediate_dense": Row("intermediate.dense"),
    "_feedforward_output_dense": Row("output.dense"),
    "_feedforward_layer_norm": _norm("output.LayerNorm"),
}
GEMMA_LAYER = {
    "attention/query_dense": Row("self_attn.q_proj", "in_heads_first"),
    "attention/key_dense": Row("self_attn.k_proj", "in_heads_first"),
    "attention/value_dense": Row("self_attn.v_proj", "in_heads_first"),
    "attention/output_dense": Row("self_attn.o_proj", "out"),
    "pre_attention_norm": _norm("input_layernorm"),
    "gating_ffw": Row("mlp.gate_proj"),
    "gating_ffw_2": Row("mlp.up_proj"),
    "ffw_linear": Row("mlp.down_proj"),
}
GEMMA1_LAYER = GEMMA_LAYER | {"pre_ffw_norm": _norm("post_attention_layernorm")}
GEMMA2_LAYER = GEMMA_LAYER | {
    "post_attention_norm": _norm("post_attention_layernorm"),
    "pre_ffw_norm": _norm("pre_feedforward_layernorm"),
    "post_ffw_norm": _norm("post_feedforward_layernorm"),
}
T5_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}


def _t5_attention(theirs: str, published: str) -> dict[str, Row]:
    return {
        f"{theirs}/{name}_projector": Row(f"{published}.{q}") for name, q in T5_PROJECTIONS.items()
    }


def _t5_layer(number: int, gated: bool) -> dict[str, Row]:
    """Returns the rows of an encoder's layer (its feed-forward is layer.1) or a decoder's."""
    feed_forward = f"layer.{number}.DenseReluDense"
    rows = {
        "self_attention_layer_norm": _norm("layer.0.layer_norm"),
        "self_attention": _table("layer.0.SelfAttention.relative_attention_bias"),
        "layer_norm": _norm(f"layer.{number}.layer_norm"),
        "input_projector": Row(f"{feed_forward}.{'wi_0' if gated else 'wi'}"),
        "gate_projector": Row(f"{feed_forward}.wi_1"),
        "output_projector": Row(f"{feed_forward}.wo"),
        **_t5_attention("self_attention", "layer.0.SelfAttention"),
    }
    if number == 2:
        rows["cross_attention_layer_norm"] = _norm("layer.1.layer_norm")
        rows |= _t5_attention("cross_attention", "layer.1.EncDecAttention")
    return rows


@dataclasses.dataclass(frozen=True)
class Kind:
    """A class of backbones.

    Attributes:
      config: makes config.json of the backbone's, which it reads with `take`.
      layer: the name of its layers in h5, by class.
      names: returns the rows of layers, and of all else, for a config.json.
      tasks: rows of the arrays of a task, and the class of transformers, by the class of the task.
      bare: the class of transformers without a task.
      tokenizer: the fields of tokenizer_config.json, and the names of the files, as here and in
        transformers.
    """

    config: Callable[["Fields"], Json]
    layer: str
    blocks: Callable[[Json], Mapping[str, Mapping[str, Row]]]
    outside: Mapping[str, Row]
    bare: str
    tokenizer: Json
    files: Mapping[str, str]
    tasks: Mapping[str, tuple[str, Mapping[str, Row]]] = dataclasses.field(default_factory=dict)


class Fields:
    """The config of a backbone, of which each field is read, or else refused."""

    def __init__(self, path: Path, values: Json):
        self.path = path
        self.values = dict(values)
        self.left = set(values) - set(UNUSED_FIELDS)

    def take(self, name: str, default: Any = None) -> Any:
        """Returns a field; without a default, it must be a number above 0.

        Raises:
          WeightsError: it is missing, or of another type.
        """
        self.left.discard(name)
        value = self.values.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if default is None and (not is_number or value <= 0):
            raise WeightsError(
                f"{self.path}: {name}={quote_value(value)}: must be a number above 0."
            )
        return value

    def only(self, name: str, *allowed: object) -> None:
        """Refuses values of a field that are not computed here."""
        self.left.discard(name)
        if name in self.values and self.values[name] not in allowed:
            raise WeightsError(
                f"{self.path}: {name}={quote_value(self.values[name])}: only"
                f" {quote_value(allowed[0])} is read here; in KerasHub,"
                " export_to_transformers(path) may write it."
            )


def _sizes(fields: Fields) -> Json:
    return {
        "vocab_size": fields.take("vocabulary_size"),
        "num_hidden_layers": fields.take("num_layers"),
        "hidden_size": fields.take("hidden_dim"),
        "intermediate_size": fields.take("intermediate_dim"),
    }


def _bert(fields: Fields) -> Json:
    return _sizes(fields) | {
        "model_type": "bert",
        "num_attention_heads": fields.take("num_heads"),
        "max_position_embeddings": fields.take("max_sequence_length"),
        "type_vocab_size": fields.take("num_segments"),
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": fields.take("dropout", 0.1),
        "pad_token_id": 0,
    }


def _roberta(fields: Fields) -> Json:
    return _sizes(fields) | {
        "model_type": "roberta",
        "num_attention_heads": fields.take("num_heads"),
        "max_position_embeddings": fields.take("max_sequence_length") + ROBERTA_PADDING,
        "type_vocab_size": 1,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": fields.take("dropout", 0.1),
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def _t5(fields: Fields) -> Json:
    d_model = fields.take("hidden_dim")
    heads = fields.take("num_heads")
    gated = fields.take("use_gated_activation", True)
    activation = _activation(fields)
    projection = {"gelu": "gelu_python"}.get(activation, activation)
    if gated and activation == "gelu_new":
        projection = "gelu"
    return {
        "model_type": "t5",
        "vocab_size": fields.take("vocabulary_size"),
        "d_model": d_model,
        "d_kv": fields.take("key_value_dim", False) or d_model // heads,
        "d_ff": fields.take("intermediate_dim"),
        "num_layers": fields.take("num_layers"),
        "num_decoder_layers": fields.take("num_layers"),
        "num_heads": heads,
        "feed_forward_proj": f"gated-{projection}" if gated else projection,
        "layer_norm_epsilon": fields.take("layer_norm_epsilon"),
        "dropout_rate": fields.take("dropout", 0.1),
        "tie_word_embeddings": bool(fields.take("tie_embedding_weights", True)),
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _activation(fields: Fields) -> str:
    """Returns the name in transformers of an activation, given by its name or as an object."""
    named = fields.take("activation", "relu")
    if isinstance(named, dict):
        named = named.get("config")
    name = str(named).rpartition(">")[2]
    known = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gelu_approximate": "gelu_new"}
    if name not in known:
        raise WeightsError(
            f"{fields.path}: activation={quote_value(named)}: {', '.join(known)} are read."
        )
    return known[name]


def _gemma(fields: Fields) -> Json:
    config = _sizes(fields)
    config |= {
        "intermediate_size": config["intermediate_size"] // 2,  # theirs counts gate and up
        "num_attention_heads": fields.take("num_query_heads"),
        "num_key_value_heads": fields.take("num_key_value_heads"),
        "rms_norm_eps": fields.take("layer_norm_epsilon"),
        "model_type": "gemma",
        "head_dim": fields.take("head_dim"),
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    }
    posts = (fields.take("use_post_ffw_norm", False), fields.take("use_post_attention_norm", False))
    caps = {
        "attn_logit_softcapping": fields.take("attention_logit_soft_cap", False) or None,
        "final_logit_softcapping": fields.take("final_logit_soft_cap", False) or None,
    }
    by_head = fields.take("query_head_dim_normalize", True)
    slides = fields.take("use_sliding_window_attention", False)
    window = fields.take("sliding_window_size", 4096)
    if not any((*posts, *caps.values(), slides, not by_head)):
        return config
    if not all(posts):
        raise WeightsError(
            f"{fields.path}: use_post_ffw_norm and use_post_attention_norm must both be true, as in"
            " Gemma 2, or everything else that Gemma 2 adds false."
        )
    scale = (
        config["head_dim"] if by_head else config["hidden_size"] // config["num_attention_heads"]
    )
    kinds = ["sliding_attention", "full_attention"] if slides else ["full_attention"] * 2
    return (
        config
        | caps
        | {
            "model_type": "gemma2",
            "query_pre_attn_scalar": scale,
            "sliding_window": window,
            "layer_types": [kinds[i % 2] for i in range(int(config["num_hidden_layers"]))],
        }
    )


ROBERTA_PADDING = 2  # rows of transformers' positions that KerasHub does not keep
TABLES = (("weight", "as_is"), ("lm_head.weight", "in"))  # the second if they are not tied
MASKED_LM = {
    "layers/masked_lm_head/_intermediate_dense": Row("lm_head.dense"),
    "layers/masked_lm_head/_intermediate_layer_norm": _norm("lm_head.layer_norm"),
    "layers/masked_lm_head": Row("lm_head", arrays=(("bias", "bias"),)),
}
KINDS = {
    "BertBackbone": Kind(
        _bert,
        "transformer_encoder",
        lambda config: {"encoder.layer": BERT_LAYER},
        {
            "layers/reversible_embedding": _table("embeddings.word_embeddings"),
            "layers/position_embedding": _table("embeddings.position_embeddings"),
            "layers/embedding": _table("embeddings.token_type_embeddings"),
            "layers/layer_normalization": _norm("embeddings.LayerNorm"),
            "layers/dense": Row("pooler.dense"),
        },
        "BertModel",
        {"tokenizer_class": "BertTokenizer"},
        {"vocabulary.txt": "vocab.txt"},
        {"TextClassifier": ("BertForSequenceClassification", {"layers/dense": Row("classifier")})},
    ),
    "RobertaBackbone": Kind(
        _roberta,
        "transformer_encoder",
        lambda config: {"encoder.layer": BERT_LAYER},
        {
            "layers/token_and_position_embedding/token_embedding": _table(
                "embeddings.word_embeddings"
            ),
            "layers/token_and_position_embedding/position_embedding": _table(
                "embeddings.position_embeddings"
            ),
            "layers/layer_normalization": _norm("embeddings.LayerNorm"),
        },
        "RobertaModel",
        {"tokenizer_class": "RobertaTokenizer"},
        {"vocabulary.json": "vocab.json", "merges.txt": "merges.txt"},
        {
            "MaskedLM": ("RobertaForMaskedLM", MASKED_LM),
            "TextClassifier": (
                "RobertaForSequenceClassification",
                {
                    "layers/dense": Row("classifier.dense"),
                    "layers/dense_1": Row("classifier.out_proj"),
                },
            ),
        },
    ),
    "T5Backbone": Kind(
        _t5,
        "t5_transformer_layer",
        lambda config: {
            "encoder.block": _t5_layer(1, config["feed_forward_proj"].startswith("gated-")),
            "decoder.block": _t5_layer(2, config["feed_forward_proj"].startswith("gated-")),
        },
        {
            "layers/reversible_embedding": Row("shared", arrays=TABLES),
            "layers/t5_layer_norm": _norm("encoder.final_layer_norm"),
            "layers/t5_layer_norm_1": _norm("decoder.final_layer_norm"),
        },
        "T5ForConditionalGeneration",
        {"tokenizer_class": "T5Tokenizer"},
        {"vocabulary.spm": "spiece.model"},
        {"Seq2SeqLM": ("T5ForConditionalGeneration", {})},
    ),
    "GemmaBackbone": Kind(
        _gemma,
        "gemma_decoder_block",
        lambda config: {
            "layers": GEMMA2_LAYER if config["model_type"] == "gemma2" else GEMMA1_LAYER
        },
        {
            "layers/reversible_embedding": _table("embed_tokens"),
            "layers/rms_normalization": _norm("norm"),
        },
        "GemmaForCausalLM",
        {"tokenizer_class": "GemmaTokenizer"},
        {"vocabulary.spm": "tokenizer.model"},
        {"CausalLM": ("GemmaForCausalLM", {})},
    ),
}
