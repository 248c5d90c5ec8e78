"""Presets of KerasHub: config.json of a backbone, arrays in h5, and the assets of its tokenizer.

A preset of a task has task.json and its arrays besides. Arrays are named by the classes of layers,
numbered in the order of `model.layers`: layers/transformer_encoder_1/_feedforward_layer_norm/vars/0
is the scale of a norm in the second layer.

Reference: keras_hub/src/utils/preset_utils.py, and keras_hub/src/utils/transformers, whose
converters name the same matrices in both libraries.
"""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.files.read import Json, brief, read_object, shown
from flaxformer_lite.pretrained.foreign.arranged import Arranged, Joined, Readable
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name

FORM = "KerasHub preset"
WEIGHTS = "model.weights.h5"
SHARDS = "model.weights.json"
TASK = "task.json"
TASK_WEIGHTS = "task.weights.h5"
DTYPES = ("float32", "bfloat16", "float16")
UNUSED_FIELDS = ("name", "trainable", "dtype", "dropout")
INSTALL = "reading it needs h5py: pip install 'flaxformer_lite[keras]'"
# The axes of an array that make each axis of a tensor of torch, by its layout and rank.
LAYOUTS: dict[tuple[str, int], tuple[tuple[int, ...], ...]] = {
    ("as_is", 1): ((0,),),
    ("as_is", 2): ((0,), (1,)),
    ("bias", 1): ((0,),),
    ("bias", 2): ((0, 1),),  # [N, H] -> [N H]
    ("in", 2): ((1,), (0,)),
    ("in", 3): ((1, 2), (0,)),  # [D, N, H] -> [N H, D]
    ("in_heads_first", 3): ((0, 2), (1,)),  # [N, D, H] -> [N H, D]
    ("out", 3): ((2,), (0, 1)),  # [N, H, D] -> [D, N H]
    ("conv", 2): ((0,), (1,)),  # GPT-2's matrices are not transposed
    ("conv", 3): ((0,), (1, 2)),
    ("conv_out", 3): ((0, 1), (2,)),
}


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


def _layer(names: Mapping[str, str], into: str = "in", out: str = "out") -> dict[str, Row]:
    """Returns the rows of keras_hub.layers.TransformerEncoder and TransformerDecoder."""
    attention = "_self_attention_layer"
    return {
        f"{attention}/query_dense": Row(names["query"], into),
        f"{attention}/key_dense": Row(names["key"], into),
        f"{attention}/value_dense": Row(names["value"], into),
        f"{attention}/output_dense": Row(names["out"], out),
        "_self_attention_layer_norm": _norm(names["attention_norm"]),
        "_feedforward_intermediate_dense": Row(names["up"], into),
        "_feedforward_output_dense": Row(names["down"], into),
        "_feedforward_layer_norm": _norm(names["mlp_norm"]),
    }


BERT_LAYER = _layer(
    {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "mlp_norm": "output.LayerNorm",
    }
)
GPT2_LAYER = _layer(
    {
        "query": "attn.c_attn/query",
        "key": "attn.c_attn/key",
        "value": "attn.c_attn/value",
        "out": "attn.c_proj",
        "attention_norm": "ln_1",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
        "mlp_norm": "ln_2",
    },
    into="conv",
    out="conv_out",
)
LLAMA_LAYER = {
    "_self_attention_layer/_query_dense": Row("self_attn.q_proj"),
    "_self_attention_layer/_key_dense": Row("self_attn.k_proj"),
    "_self_attention_layer/_value_dense": Row("self_attn.v_proj"),
    "_self_attention_layer/_output_dense": Row("self_attn.o_proj", "out"),
    "_self_attention_layernorm": _norm("input_layernorm"),
    "_feedforward_layernorm": _norm("post_attention_layernorm"),
    "_feedforward_gate_dense": Row("mlp.gate_proj"),
    "_feedforward_intermediate_dense": Row("mlp.up_proj"),
    "_feedforward_output_dense": Row("mlp.down_proj"),
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
      config: makes config.json of the backbone's, which it reads with `take`, and the arrays.
      layer: the name of its layers in h5, by class.
      names: returns the rows of layers, and of all else, for a config.json.
      tasks: rows of the arrays of a task, and the class of transformers, by the class of the task.
      bare: the class of transformers without a task.
      tokenizer: the fields of tokenizer_config.json, and the names of the files, as here and in
        transformers.
    """

    config: Callable[["Fields", Mapping[str, Readable]], Json]
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
        """Returns a field; without a default, it must be a number.

        Raises:
          WeightsError: it is missing, or of another type.
        """
        self.left.discard(name)
        value = self.values.get(name, default)
        if default is None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise WeightsError(f"{self.path}: {name}={brief(value)}: must be a number.")
        return value

    def only(self, name: str, *allowed: object) -> None:
        """Refuses values of a field that are not computed here."""
        self.left.discard(name)
        if name in self.values and self.values[name] not in allowed:
            raise WeightsError(
                f"{self.path}: {name}={brief(self.values[name])}: only {brief(allowed[0])} is read"
                " here; in KerasHub, export_to_transformers(path) may write it."
            )


def _sizes(fields: Fields) -> Json:
    return {
        "vocab_size": fields.take("vocabulary_size"),
        "num_hidden_layers": fields.take("num_layers"),
        "hidden_size": fields.take("hidden_dim"),
        "intermediate_size": fields.take("intermediate_dim"),
    }


def _bert(fields: Fields, arrays: Mapping[str, Readable]) -> Json:
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


def _roberta(fields: Fields, arrays: Mapping[str, Readable]) -> Json:
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


def _gpt2(fields: Fields, arrays: Mapping[str, Readable]) -> Json:
    return {
        "model_type": "gpt2",
        "vocab_size": fields.take("vocabulary_size"),
        "n_positions": fields.take("max_sequence_length"),
        "n_embd": fields.take("hidden_dim"),
        "n_layer": fields.take("num_layers"),
        "n_head": fields.take("num_heads"),
        "n_inner": fields.take("intermediate_dim"),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": fields.take("dropout", 0.1),
    }


def _t5(fields: Fields, arrays: Mapping[str, Readable]) -> Json:
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
            f"{fields.path}: activation={brief(named)}: {', '.join(known)} are read."
        )
    return known[name]


def _decoder(fields: Fields) -> Json:
    return _sizes(fields) | {
        "num_attention_heads": fields.take("num_query_heads"),
        "num_key_value_heads": fields.take("num_key_value_heads"),
        "rms_norm_eps": fields.take("layer_norm_epsilon"),
    }


def _llama(fields: Fields, arrays: Mapping[str, Readable]) -> Json:
    fields.only("rope_position_scaling_factor", 1.0)
    config = _decoder(fields) | {
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": UNTIED not in arrays,
        "rope_theta": float(fields.take("rope_max_wavelength")),
        "max_position_embeddings": LLAMA_LENGTH,
    }
    fields.take("tie_word_embeddings", False)  # the arrays tell
    factor = fields.take("rope_frequency_adjustment_factor", 0)
    scaling = {
        "rope_type": "llama3",
        "factor": factor and float(factor),
        "low_freq_factor": fields.take("rope_low_freq_factor", 0),
        "high_freq_factor": fields.take("rope_high_freq_factor", 0),
        "original_max_position_embeddings": fields.take("rope_pretraining_sequence_length", 0),
    }
    return config | ({"rope_scaling": scaling} if factor else {})


def _mistral(fields: Fields, arrays: Mapping[str, Readable]) -> Json:
    fields.only("rope_scaling_factor", 1.0)
    config = _decoder(fields) | {
        "model_type": "mistral",
        "hidden_act": "silu",
        "tie_word_embeddings": UNTIED not in arrays,
        "rope_theta": float(fields.take("rope_max_wavelength")),
        "sliding_window": fields.take("sliding_window", 0) or None,
    }
    head_dim = fields.take("head_dim", 0)
    return config | ({"head_dim": head_dim} if head_dim else {})


def _gemma(fields: Fields, arrays: Mapping[str, Readable]) -> Json:
    config = _decoder(fields)
    config |= {
        "intermediate_size": config["intermediate_size"] // 2,  # theirs counts gate and up
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
LLAMA_LENGTH = 8192  # of texts; a preset does not tell, and no number depends on it
TABLES = (("weight", "as_is"), ("lm_head.weight", "in"))  # the second if they are not tied
UNTIED = "layers/reversible_embedding/vars/1"
MASKED_LM = {
    "layers/masked_lm_head/_intermediate_dense": Row("lm_head.dense"),
    "layers/masked_lm_head/_intermediate_layer_norm": _norm("lm_head.layer_norm"),
    "layers/masked_lm_head": Row("lm_head", arrays=(("bias", "bias"),)),
}
ENDS_OF_LLAMA = {
    "layers/reversible_embedding": Row("embed_tokens", arrays=TABLES),
}
SENTENCEPIECE = {"vocabulary.spm": "tokenizer.model"}
BYTE_PAIRS = {"vocabulary.json": "vocab.json", "merges.txt": "merges.txt"}
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
        BYTE_PAIRS,
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
    "GPT2Backbone": Kind(
        _gpt2,
        "transformer_decoder",
        lambda config: {"h": GPT2_LAYER},
        {
            "layers/reversible_embedding": _table("wte"),
            "layers/position_embedding": _table("wpe"),
            "layers/layer_normalization": _norm("ln_f"),
        },
        "GPT2LMHeadModel",
        {"tokenizer_class": "GPT2Tokenizer"},
        BYTE_PAIRS,
        {"CausalLM": ("GPT2LMHeadModel", {})},
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
    "LlamaBackbone": Kind(
        _llama,
        "llama_transformer_decoder",
        lambda config: {"layers": LLAMA_LAYER},
        ENDS_OF_LLAMA | {"layers/llama_layer_norm": _norm("norm")},
        "LlamaForCausalLM",
        {"tokenizer_class": "LlamaTokenizer"},
        SENTENCEPIECE,
        {"CausalLM": ("LlamaForCausalLM", {})},
    ),
    "MistralBackbone": Kind(
        _mistral,
        "mistral_transformer_decoder",
        lambda config: {"layers": LLAMA_LAYER},
        ENDS_OF_LLAMA | {"layers/mistral_layer_normalization": _norm("norm")},
        "MistralForCausalLM",
        {"tokenizer_class": "LlamaTokenizer"},
        SENTENCEPIECE,
        {"CausalLM": ("MistralForCausalLM", {})},
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
        SENTENCEPIECE,
        {"CausalLM": ("GemmaForCausalLM", {})},
    ),
}
# Llama 3 splits texts by a pattern that its files in a preset do not hold.
KINDS["Llama3Backbone"] = dataclasses.replace(KINDS["LlamaBackbone"], tokenizer={}, files={})


def find(folder: Path) -> Path | None:
    """Returns the folder if it is a preset."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    module = read_object(path, error=WeightsError).get("module")
    return folder if isinstance(module, str) and module.startswith("keras") else None


def describe(place: Path) -> list[str]:
    """Describes a preset in a line, what is left out in others."""
    config = read_config(place)
    backbone = _read(place / "config.json")
    task = _task(place)
    kind = _kind(place)
    layers = config.get("num_hidden_layers", config.get("n_layer", config.get("num_layers")))
    width = config.get("hidden_size", config.get("n_embd", config.get("d_model")))
    lines = [
        f"{place}: a preset of KerasHub, {backbone['class_name']}"
        f"{f' with {task[0]}' if task[0] else ''}: {config['model_type']} with {layers} layers,"
        f" width {width}, vocabulary {config['vocab_size']:,}; read as {config['architectures'][0]}"
    ]
    if task[0] and _task_name(task[0]) not in kind.tasks:
        lines.append(
            f"the head of its {task[0]} computes what no class of transformers does: left out"
        )
    if config["model_type"] == "llama":
        lines.append(
            f"assumed: texts of up to {LLAMA_LENGTH:,} tokens, which a preset does not say"
        )
    if not _assets(place):
        lines.append("it has no tokenizer that is read: copy the files of the published model's")
    return lines


def read_config(place: Path) -> Json:
    """Derives the config.json that transformers writes for the same model.

    Raises:
      WeightsError: a class or field that is not computed here, or quantized weights.
    """
    path = place / "config.json"
    kind = _kind(place)
    values = _read(path)["config"]
    _check_dtype(path, values.get("dtype"))
    fields = Fields(path, values)
    config = kind.config(fields, _open(place))
    if fields.left:
        name = sorted(fields.left)[0]
        raise WeightsError(
            f"{path}: {name}={brief(values[name])}: a field that is not known here and might change"
            " the numbers."
        )
    name, settings = _task(place)
    architecture, _ = kind.tasks.get(_task_name(name), (kind.bare, {}))
    if config["model_type"] == "gemma2":
        architecture = architecture.replace("Gemma", "Gemma2")
    config["architectures"] = [architecture]
    if architecture.endswith("SequenceClassification"):
        if settings.get("activation") not in (None, "linear", "softmax"):
            raise WeightsError(
                f"{place / TASK}: activation={brief(settings['activation'])}: logits are read"
                " without one, or with the softmax that turns them into probabilities."
            )
        config["num_labels"] = settings.get("num_classes")
    return config


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    """Opens the arrays by the names that transformers gives them.

    Raises:
      WeightsError: a file is damaged, or holds an array that the model does not have.
    """
    kind = _kind(place)
    blocks = kind.blocks(config)
    names = list(blocks)
    layers_of_encoder = config.get("num_layers", 0)  # of T5, before those of the decoder

    def row_of(owner: str) -> tuple[str, Row | None]:
        match = re.fullmatch(rf"layers/{kind.layer}(?:_(\d+))?/(.+)", owner)
        if not match:
            return "", kind.outside.get(owner)
        layer = int(match[1] or 0)
        side = names[0]
        if len(names) > 1 and layer >= layers_of_encoder:
            side = names[1]
            layer -= layers_of_encoder
        return f"{side}.{layer}.", blocks[side].get(match[2])

    tensors = _named(place / WEIGHTS, _open(place), row_of)
    _, rows = kind.tasks.get(_task_name(_task(place)[0]), ("", {}))
    if rows:
        arrays = _open_file(place / TASK_WEIGHTS)
        of_head = {path: array for path, array in arrays.items() if path.startswith("layers/")}
        tensors |= _named(place / TASK_WEIGHTS, of_head, lambda owner: ("", rows.get(owner)))
    return _completed(config, tensors)


def write_tokenizer(place: Path, made: Path) -> None:
    """Writes the tokenizer of a preset as files of transformers; nothing if it has none."""
    assets = _assets(place)
    if not assets:
        return
    for source, name in assets.items():
        shutil.copyfile(source, made / name)
    config = dict(_kind(place).tokenizer)
    settings = _read(place / "tokenizer.json").get("config", {})
    if config["tokenizer_class"] == "BertTokenizer":
        config["do_lower_case"] = bool(settings.get("lowercase", False))
        config["strip_accents"] = bool(settings.get("strip_accents", False))
    (made / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _completed(config: Json, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Joins what transformers stores in one tensor, and adds rows that it has besides."""
    for name in [name for name in tensors if "/query." in name]:
        names = [name.replace("/query.", f"/{part}.") for part in ("query", "key", "value")]
        parts = [tensors.pop(part) for part in names if part in tensors]
        if len(parts) == len(names):
            tensors[name.replace("/query.", ".")] = Joined(tuple(parts), axis=-1)
    table = "embeddings.position_embeddings.weight"
    if config["model_type"] == "roberta" and table in tensors:
        positions = tensors[table]
        zeros = np.zeros((ROBERTA_PADDING, positions.shape[-1]), positions.dtype)
        tensors[table] = Joined((Tensor(zeros), positions), axis=0)
        # transformers adds the one row of this table to all tokens.
        tensors["embeddings.token_type_embeddings.weight"] = Tensor(zeros[:1])
    return tensors


def _named(
    file: Path, arrays: Mapping[str, Readable], row_of: Callable[[str], tuple[str, Row | None]]
) -> dict[str, Tensor]:
    """Names the arrays of a file.

    Args:
      file: for messages.
      arrays: by their paths, `LAYER/vars/NUMBER`.
      row_of: returns the prefix of a layer's names, and its row.
    """
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        owner, _, number = path.rpartition("/vars/")
        prefix, row = row_of(owner)
        found = row.array(int(number)) if row else None
        if found is None:
            raise WeightsError(f"{file}: holds {shown(path)}, which is not known here.")
        name, layout = found
        rank = len(array.shape)
        if (layout, rank) not in LAYOUTS:
            raise WeightsError(f"{file}: {path} has {rank} axes; no such layer has.")
        where = f"{file}: {path}"
        tensors[prefix + name] = Arranged(array, LAYOUTS[layout, rank], where=where)
    return tensors


def _kind(place: Path) -> Kind:
    path = place / "config.json"
    name = _read(path).get("class_name")
    if name not in KINDS:
        raise WeightsError(
            f"{path}: a preset of KerasHub ({brief(name)}), which is not read; {', '.join(KINDS)}"
            " are. There, export_to_transformers(path) may write it."
        )
    if "config" not in _read(path):
        raise WeightsError(f"{path}: a preset of KerasHub without sizes; fetch it again.")
    return KINDS[name]


def _read(path: Path) -> Json:
    return read_object(path, {"config": dict}, error=WeightsError)


def _task(place: Path) -> tuple[str, Json]:
    """Returns the class of the task, and its config; "" if there is none."""
    if not (place / TASK).is_file():
        return "", {}
    task = _read(place / TASK)
    return str(task.get("class_name", "")), task.get("config", {})


def _task_name(name: str) -> str:
    """Returns what a task does, of its class: TextClassifier for BertTextClassifier."""
    match = re.search(r"(TextClassifier|MaskedLM|CausalLM|Seq2SeqLM)$", name)
    return match[1] if match else ""


def _assets(place: Path) -> dict[Path, str]:
    """Returns the files of the tokenizer, and their names in transformers; {} unless all exist."""
    folder = place / "assets" / "tokenizer"
    named = {folder / theirs: name for theirs, name in _kind(place).files.items()}
    return named if all(path.is_file() for path in named) else {}


def _check_dtype(path: Path, dtype: object) -> None:
    """Refuses quantized layers, whose policy has another class, or is a map of policies."""
    name = dtype.get("class_name") if isinstance(dtype, dict) else "DTypePolicy"
    if name != "DTypePolicy":
        raise WeightsError(
            f"{path}: dtype={brief(name)}: quantized weights of KerasHub are not read; save the"
            " preset in float32 or bfloat16."
        )


def _open(place: Path) -> dict[str, Readable]:
    """Opens the arrays of the backbone, in one file or in several."""
    if (place / WEIGHTS).is_file() or not (place / SHARDS).is_file():
        return _open_file(place / WEIGHTS)
    files: set[str] = set()
    for named in _read(place / SHARDS).get("weight_map", {}).values():
        files |= set(named) if isinstance(named, list) else {str(named)}
    arrays: dict[str, Readable] = {}
    for file in sorted(files):
        if Path(file).name != file:
            raise WeightsError(f"{place / SHARDS}: {brief(file)} is no plain name in its folder.")
        arrays |= _open_file(place / file)
    return arrays


def _open_file(path: Path) -> dict[str, Readable]:
    """Opens an h5 file; its arrays are read later."""
    try:
        import h5py
    except ImportError:
        raise WeightsError(f"{path}: {INSTALL}.") from None
    if not path.is_file():
        raise WeightsError(f"{path}: missing; fetch the whole preset again.")
    arrays: dict[str, Readable] = {}
    try:
        file = h5py.File(path, "r")
        for name in _names(h5py, file):
            check_name(path, name)
            dataset = file[name]
            if dataset.external or dataset.is_virtual:
                raise WeightsError(f"{path}: {name} lies in another file, which is not read.")
            arrays[name] = dataset
    except (OSError, RuntimeError, KeyError) as error:
        why = shown(str(error))
        raise WeightsError(f"{path}: not an h5 file, or damaged ({why}); fetch it again.") from None
    for name, array in arrays.items():
        dtype = str(Arranged(array, ()).dtype)
        if name.startswith("layers/") and dtype not in DTYPES:
            raise WeightsError(
                f"{path}: {name} has dtype {dtype}; must be one of {', '.join(DTYPES)}: quantized"
                " weights are not read."
            )
    return arrays


def _names(h5py: Any, group: Any, above: str = "") -> list[str]:
    """Lists the arrays of a group; links into other files are not followed."""
    names = []
    for key in group:
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            continue
        item = group[key]
        path = f"{above}{key}"
        if isinstance(item, h5py.Group):
            names += _names(h5py, item, f"{path}/")
        elif re.fullmatch(r".+/vars/\d+", path):
            names.append(path)
    return names
