"""flaxformer's BERT in checkpoints of T5X: pretraining, a classifier, or the encoder alone.

Kernels have one axis for all heads, so that the number of heads is that of the gin file, or else
one for each 64 features, as in BERT base and large.

Reference: flaxformer/architectures/bert/{bert,heads}.py of April 2024.
"""

import re
from collections.abc import Mapping

from flaxformer_lite.contrib.t5x.layers import Checkpoint, as_torch
from flaxformer_lite.files.read import Json, quote_name, quote_value
from flaxformer_lite.pretrained.arranged_tensors import Readable, add_tensor
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

EMBEDDER = re.compile(r"(encoder/)?(embedder_block/)?embedder/embedders_\w+/embedding")
TABLES = {
    "embedders_token_ids/embedding": "word_embeddings",
    "embedders_input_ids/embedding": "word_embeddings",
    "embedders_position_ids/embedding": "position_embeddings",
    "embedders_segment_ids/embedding": "token_type_embeddings",
}
LAYER = re.compile(r"encoder_block/layer_sequence/layers_(\d+)/(.+)/(\w+)")
MODULES = {
    "attention_block/attention_layer/query": "attention.self.query",
    "attention_block/attention_layer/key": "attention.self.key",
    "attention_block/attention_layer/value": "attention.self.value",
    "attention_block/dense_layer": "attention.output.dense",
    "attention_block/layer_norm": "attention.output.LayerNorm",
    "mlp_block/mlp/dense_layer": "intermediate.dense",
    "mlp_block/dense_layer": "output.dense",
    "mlp_block/layer_norm": "output.LayerNorm",
}
HEADS = {
    "pooler/dense": "bert.pooler.dense",
    "nsp_head/pooler/dense": "bert.pooler.dense",
    "classifier_head/pooler/dense": "bert.pooler.dense",
    "mlm_head/dense": "cls.predictions.transform.dense",
    "mlm_head/layer_norm": "cls.predictions.transform.LayerNorm",
    "mlm_head": "cls.predictions",
    "nsp_head/dense": "cls.seq_relationship",
    "classifier_head/dense": "classifier",
}
HEAD_WIDTH = 64
READABLE = "pretraining, classifiers and encoders alone are read"


def is_one(arrays: Mapping[str, Readable]) -> bool:
    return any(EMBEDDER.fullmatch(path) for path in arrays)


def describe(checkpoint: Checkpoint, config: Json) -> list[str]:
    """Describes the model, and what was assumed."""
    heads = config["num_attention_heads"]
    lines = [
        f"flaxformer's BERT with {config['num_hidden_layers']} layers, width"
        f" {config['hidden_size']}, {heads} heads, feed-forward {config['intermediate_size']},"
        f" vocabulary {config['vocab_size']:,}; read as {config['architectures'][0]}"
    ]
    if not checkpoint.number("num_attention_heads", 0):
        lines.append(
            f"assumed, as the arrays do not tell: num_attention_heads={heads}; a config.json of"
            " transformers in the folder, or a gin file, says another number"
        )
    return lines


def read_config(checkpoint: Checkpoint) -> Json:
    """Derives transformers' config.json.

    Raises:
      WeightsError: parts are missing, or the number of heads is unknown.
    """
    found = {name: array for name, array, _ in _named(checkpoint)}
    shapes = {name: tuple(array.shape) for name, array in found.items()}
    body = "bert.encoder.layer"
    table = "bert.embeddings.{}_embeddings.weight"
    up = f"{body}.0.intermediate.dense.weight"
    for needed in (table.format("word"), table.format("position"), table.format("token_type"), up):
        if len(shapes.get(needed, ())) != 2:
            raise WeightsError(
                f"{checkpoint.place}: flaxformer's BERT without {needed}, by its name in"
                f" transformers; {READABLE}."
            )
    vocab_size, width = shapes[table.format("word")]
    layers = [int(name.split(".")[3]) + 1 for name in shapes if name.startswith(f"{body}.")]
    config: Json = {
        "model_type": "bert",
        "architectures": [_architecture(checkpoint, shapes)],
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": max(layers),
        "num_attention_heads": _heads(checkpoint, width),
        "intermediate_size": shapes[up][1],
        "max_position_embeddings": shapes[table.format("position")][0],
        "type_vocab_size": shapes[table.format("token_type")][0],
        "hidden_act": "gelu_new",  # flax's gelu is the tanh form
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    if "classifier.weight" in shapes:
        config["num_labels"] = shapes["classifier.weight"][1]
    return config


def open_weights(checkpoint: Checkpoint, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names that transformers gives them.

    Raises:
      WeightsError: the checkpoint holds a parameter that BERT does not have.
    """
    alone = config.get("architectures") == ["BertModel"]
    tensors: dict[str, Tensor] = {}
    for name, array, path in _named(checkpoint):
        spelled = name.removeprefix("bert.") if alone else name
        tensor = as_torch(checkpoint, path, array)
        add_tensor(tensors, spelled, tensor, f"{checkpoint.place}: {quote_name(path)}")
    return tensors


def _architecture(checkpoint: Checkpoint, shapes: Mapping[str, object]) -> str:
    def has(head: str) -> bool:
        return any(name.startswith(head) for name in shapes)

    predicts = has("cls.predictions")
    follows = has("cls.seq_relationship")
    if has("classifier") and not has("cls."):
        return "BertForSequenceClassification"
    if has("classifier") or (follows and not predicts):
        raise WeightsError(
            f"{checkpoint.place}: flaxformer's BERT with heads that no class of transformers has"
            f" together; {READABLE}."
        )
    if predicts:
        return "BertForPreTraining" if follows else "BertForMaskedLM"
    return "BertModel"


def _heads(checkpoint: Checkpoint, width: int) -> int:
    heads = checkpoint.number("num_attention_heads", width // HEAD_WIDTH)
    if not heads or width % heads or (width % HEAD_WIDTH and not checkpoint.gin):
        raise WeightsError(
            f"{checkpoint.place}: flaxformer's BERT of width {width}, whose arrays do not tell the"
            " number of heads; put the gin file of the run (num_attention_heads=...), or a"
            " config.json of transformers for the model, into the folder that you pass."
        )
    return heads


def _named(checkpoint: Checkpoint) -> list[tuple[str, Readable, str]]:
    """Returns the parameters by transformers' names, with their paths.

    Raises:
      WeightsError: BERT does not have one of them.
    """
    named = []
    for path, array in checkpoint.arrays.items():
        name = _published_name(path)
        rank = 2 if path.endswith(("/kernel", "/embedding")) else 1
        if name is None or len(array.shape) != rank:
            raise WeightsError(
                f"{checkpoint.place}: holds {quote_name(path)} of shape"
                f" {quote_value(list(array.shape))}, which no BERT of flaxformer has; {READABLE}."
            )
        named.append((name, array, path))
    return named


def _published_name(path: str) -> str | None:
    owner, _, leaf = path.rpartition("/")
    last = {"kernel": "weight", "scale": "weight", "bias": "bias"}.get(leaf, leaf)
    if owner in HEADS:
        return f"{HEADS[owner]}.{last}"
    inside = path.removeprefix("encoder/")
    if match := LAYER.fullmatch(inside):
        module = MODULES.get(match[2])
        return f"bert.encoder.layer.{match[1]}.{module}.{last}" if module else None
    inside = inside.removeprefix("embedder_block/")
    if inside.removeprefix("embedder/") in TABLES:
        return f"bert.embeddings.{TABLES[inside.removeprefix('embedder/')]}.weight"
    if inside in ("layer_norm/scale", "layer_norm/bias"):
        return f"bert.embeddings.LayerNorm.{last}"
    return None
