"""The format of sentence-transformers: pooling, and the layers after it."""

import json
import logging
import shutil
import string
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import (
    Json,
    Kind,
    is_kind,
    parse_object,
    quote_value,
    read_bytes,
    read_object,
)
from flaxformer_lite.nn.functions import splade
from flaxformer_lite.nn.functions.activations import TORCH_ACTIVATIONS
from flaxformer_lite.pretrained.safetensors import WeightsError, open_file

LOG = logging.getLogger("flaxformer_lite")
FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
OLD_ACTIVATION = "sbert_ce_default_activation_function"  # in config.json, before version 4
STATIC = "StaticEmbedding"
# The name of each, as all versions read it.
MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
NEWER = {  # as newer versions write it
    "cls": "first",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
LATE_CLASSES = {  # the classes of a multi-vector model's layers
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "MultiVectorMask": (
        "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    ),
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
DENSE = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}


class DenseLayer(NamedTuple):
    """A dense layer after pooling."""

    kernel_DO: np.ndarray
    bias_O: np.ndarray
    activation: str


class LateInteractionSettings(NamedTuple):
    """Settings by which a multi-vector model (ColBERT) reads queries and documents.

    Attributes:
      query_limit, document_limit: the longest of each, in tokens; None is the limit of all texts.
      expansion: `fixed`, queries are exactly `expansion_length` tokens, filled with
        `expansion_token`, `min`, they have at least that number, or "", they are not filled.
      expansion_token: its spelling; "" is the mask token, or without one the end of text.
      attends: whether other tokens attend to those that fill a query.
      skipped: spellings of tokens that have no vector, such as punctuation.
      skipped_tasks: whose texts skip them, `query` and `document`.
      kept: ids of the only tokens of documents that have vectors; () is all.
      markers: prompts of PyLate's that are one token, if the vocabulary has it, such as `[Q] `.
    """

    query_limit: int | None = None
    document_limit: int | None = None
    expansion: str = ""
    expansion_length: int = 0
    expansion_token: str = ""
    attends: bool = False
    skipped: tuple[str, ...] = ()
    skipped_tasks: tuple[str, ...] = ("document",)
    kept: tuple[int, ...] = ()
    markers: tuple[str, ...] = ()


class SentenceLayers(NamedTuple):
    """The layers after the encoder of a sentence model."""

    # a name of nn/functions/pooling.py, or several joined by +; empty where there is none; of
    # sparse vectors, a strategy of nn/functions/splade.py
    pooling: str = ""
    limit: int | None = None  # longest text in tokens; None is no limit
    normalize: bool = False  # whether vectors have length one, before they are cut
    dense: tuple[DenseLayer, ...] = ()  # layers between pooling and normalization
    prompts: tuple[tuple[str, str], ...] = ()  # names of what is put before a text, and the texts
    default_prompt: str = ""  # the name of the prompt to use if the caller names none
    include_prompt: bool = True  # whether the prompt's tokens are pooled too
    similarity: str = "cosine"  # of two vectors, as the directory's authors compare them
    # `dense`, `sparse`: one weight for each token of the vocabulary, or `multi_vector`: one vector
    # for each token of the text
    kind: str = "dense"
    activation: str = "relu"  # of sparse vectors, as nn/functions/splade.py has it
    late: LateInteractionSettings = LateInteractionSettings()  # of multi-vector models
    # the first values of a vector that are kept; 0 is all. For models trained so that they suffice
    # (Kusupati et al. 2022, "Matryoshka Representation Learning")
    size: int = 0

    def prompt(self, name: str | None = None) -> str:
        """Returns the prompt of this name, or the default one; "" for none.

        Raises:
          ConfigError: the directory has no prompt of this name.
        """
        known = dict(self.prompts)
        if name is None:
            return known.get(self.default_prompt, "")
        if name not in known:
            way = f"choose from {', '.join(known)}" if known else "this model has none"
            raise ConfigError(f"prompt_name={name!r}: no such prompt; {way}.")
        return known[name]

    def prompt_of(self, task: str) -> str:
        """Returns the prompt of a task, `query` or `document`; for "" the default prompt.

        As in sentence-transformers, a task without a prompt of its name has none, not the default.
        """
        if not task:
            return self.prompt()
        return dict(self.prompts).get(task, "")

    def cut(self, size: int, field: str) -> "SentenceLayers":
        """Returns the layers with vectors of the first `size` values; 0 is all.

        Raises:
          ConfigError: the size is negative, or the model makes no dense vectors; names the field.
        """
        if size < 0:
            raise ConfigError(f"{field}={size}: must be at least 1.")
        if size and self.kind != "dense":
            raise ConfigError(
                f"{field}={size}: {self.kind} vectors are not cut; leave it out, or choose a model"
                " of dense ones."
            )
        return self._replace(size=size)

    def finish(self, pooled_ND: np.ndarray) -> np.ndarray:
        """Applies what comes after pooling, in float32."""
        for layer in self.dense:
            dense_NO = pooled_ND @ layer.kernel_DO + layer.bias_O
            pooled_ND = np.asarray(TORCH_ACTIVATIONS[layer.activation](dense_NO))
        if self.size > pooled_ND.shape[-1]:
            raise ConfigError(
                f"size={self.size}: the model's vectors have {pooled_ND.shape[-1]} values; choose"
                " fewer."
            )
        if self.normalize:
            lengths_N1 = np.linalg.norm(pooled_ND, axis=-1, keepdims=True)
            pooled_ND = pooled_ND / np.maximum(lengths_N1, np.finfo(np.float32).tiny)
        if self.size:  # as sentence-transformers does, which does not normalize again
            pooled_ND = pooled_ND[:, : self.size]
        return pooled_ND


def read_sentence_layers(folder: Path) -> SentenceLayers:
    """Reads the layers of a sentence model's directory; the defaults where there is nothing.

    Raises:
      ConfigError, WeightsError: it pools in another way, or has other layers.
    """
    described = _optional(
        folder / "config_sentence_transformers.json",
        {"similarity_fn_name": str, "model_type": str, "truncate_dim": int},
    )
    prompts, default = _prompts(folder / "config_sentence_transformers.json")
    modules = _modules(folder)
    config = _optional(folder / "config.json", {"normalize": bool})
    is_table = not modules and config.get("model_type") == "model2vec"
    layers = SentenceLayers(
        limit=_transformer(folder).get("max_seq_length"),
        normalize=is_table and config.get("normalize", True),
        prompts=prompts,
        default_prompt=default,
        similarity=described.get("similarity_fn_name") or "",
    )
    kind = described.get("model_type")
    kinds = [kind for _, kind in modules]
    if kind == "SparseEncoder" or "SpladePooling" in kinds:
        return _sparse(folder, modules, layers)
    if kind in ("MultiVectorEncoder", "ColBERT") or "MultiVectorMask" in kinds:
        return _multi_vector(folder, modules, layers, described)
    layers = layers._replace(similarity=layers.similarity or "cosine")
    layers = layers.cut(described.get("truncate_dim") or 0, "truncate_dim")
    for place, kind in modules:
        if kind == STATIC:
            layers = layers._replace(pooling="mean")
        elif kind == "Pooling":
            pooling, include_prompt = _pooling(folder / place / "config.json")
            layers = layers._replace(pooling=pooling, include_prompt=include_prompt)
        elif kind == "Dense" and layers.pooling and not layers.normalize:
            layers = layers._replace(dense=(*layers.dense, _dense(folder / place)))
        elif kind == "Normalize" and layers.pooling:
            layers = layers._replace(normalize=True)
        elif kind != "Transformer" or layers.pooling or place:
            raise ConfigError(
                f"{folder}/modules.json: a layer {quote_value(kind)} in {quote_value(place)}: read"
                " are Transformer, in the directory itself, Pooling, Dense and Normalize, in this"
                " order."
            )
    return layers


def is_cross_encoder(folder: Path) -> bool:
    """Returns whether a folder says that it scores pairs of texts, by one number."""
    config, described = _score_settings(folder)
    labels = config.get("id2label") or range(config.get("num_labels") or 2)
    if len(labels) != 1:
        return False
    marks = {"sentence_transformers", OLD_ACTIVATION} & config.keys()
    return bool(marks) or described.get("model_type") == "CrossEncoder"


def read_score_activation(folder: Path) -> str:
    """Reads what a cross-encoder applies to its score, a name of TORCH_ACTIVATIONS.

    As in sentence-transformers, newer files come first, and a score without one is a sigmoid.

    Raises:
      ConfigError: the activation is another, or queries have a prompt.
    """
    config, described = _score_settings(folder)
    stated = config.get("sentence_transformers") or {}
    named = described.get("activation_fn") or stated.get("activation_fn")
    named = str(named or config.get(OLD_ACTIVATION) or "Sigmoid")
    activation = named.rpartition(".")[2]
    if activation not in TORCH_ACTIVATIONS:
        raise ConfigError(
            f"{folder}: the score's activation is {quote_value(named)}: read are"
            f" {', '.join(TORCH_ACTIVATIONS)}."
        )
    if described.get("default_prompt_name"):
        raise ConfigError(
            f"{folder}/{FILES[2]}: default_prompt_name: a prompt of a cross-encoder is not put"
            " before its queries here; make it null, and write the prompt into the queries."
        )
    return activation


def _score_settings(folder: Path) -> tuple[Json, Json]:
    """Reads config.json, and what version 6 of sentence-transformers writes beside it."""
    kinds: dict[str, Kind] = {"id2label": dict, "num_labels": int, "sentence_transformers": dict}
    config = _optional(folder / "config.json", {**kinds, OLD_ACTIVATION: str})
    return config, _optional(folder / FILES[2], {"model_type": str, "activation_fn": str})


def _transformer(folder: Path) -> Json:
    """Reads the settings of the Transformer layer."""
    kinds: dict[str, Kind] = dict.fromkeys(
        ("max_seq_length", "query_length", "document_length"), int
    )
    return _optional(folder / "sentence_bert_config.json", {**kinds, "query_expansion": dict})


def _sparse(folder: Path, modules: list[tuple[str, str]], layers: SentenceLayers) -> SentenceLayers:
    """Reads the layers of a sparse model: an encoder with its masked-LM head, and SpladePooling."""
    kinds = [kind for _, kind in modules]
    if kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        raise ConfigError(
            f"{folder}/modules.json: layers {quote_value(kinds)}: of sparse models, read are"
            " Transformer (or MLMTransformer) and SpladePooling."
        )
    path = folder / modules[1][0] / "config.json"
    config = read_object(path, {"pooling_strategy": str, "activation_function": str})
    strategy = config.get("pooling_strategy") or "max"
    activation = config.get("activation_function") or "relu"
    for name, value, known in (
        ("pooling_strategy", strategy, splade.STRATEGIES),
        ("activation_function", activation, splade.ACTIVATIONS),
    ):
        if value not in known:
            raise ConfigError(
                f"{path}: {name}={quote_value(value)}: must be one of {', '.join(known)}."
            )
    similarity = layers.similarity or "dot"
    return layers._replace(
        kind="sparse", pooling=strategy, activation=activation, similarity=similarity
    )


def _multi_vector(
    folder: Path, modules: list[tuple[str, str]], layers: SentenceLayers, described: Json
) -> SentenceLayers:
    """Reads the layers of a multi-vector model, as sentence-transformers or PyLate writes it."""
    settings = _transformer(folder)
    late = LateInteractionSettings(
        query_limit=settings.get("query_length"), document_limit=settings.get("document_length")
    )
    expansion = settings.get("query_expansion")
    if described.get("model_type") == "ColBERT":  # PyLate masks and normalizes without layers
        layers = layers._replace(prompts=_prefixed(layers.prompts, described))
        skipped = described.get("skiplist_words")
        if skipped is None:
            skipped = string.punctuation
        prefixes = (described.get("query_prefix"), described.get("document_prefix"))
        late = late._replace(
            skipped=tuple(skipped),
            markers=tuple(filter(None, prefixes)),
            document_limit=described.get("document_length"),
        )
        expansion = None
        if described.get("do_query_expansion") is not False:
            attends = bool(described.get("attend_to_expansion_tokens"))
            length = described.get("query_length") or 32  # PyLate's default
            expansion = {"strategy": "fixed", "attend": attends, "length": length}
        else:
            late = late._replace(query_limit=described.get("query_length"))
        layers = layers._replace(normalize=True)
    dense: list[DenseLayer] = []
    for number, (place, kind) in enumerate(modules):
        if kind == "Dense" and number:
            dense.append(_dense(folder / place, of="token_embeddings"))
        elif kind == "MultiVectorMask" and number:
            late = _mask(folder / place / "config.json", late)
        elif kind == "Normalize" and number:
            layers = layers._replace(normalize=True)
        elif kind != "Transformer" or number or place:
            raise ConfigError(
                f"{folder}/modules.json: a layer {quote_value(kind)} in {quote_value(place)}: of"
                " multi-vector models, read are Transformer, in the directory itself, Dense,"
                " MultiVectorMask and Normalize, in this order."
            )
    if expansion is not None:
        late = _expanded(folder / "sentence_bert_config.json", late, expansion)
    similarity = layers.similarity
    if similarity != "meanmaxsim":
        similarity = "maxsim"
    return layers._replace(
        kind="multi_vector", dense=tuple(dense), late=late, similarity=similarity
    )


def _prefixed(prompts: tuple[tuple[str, str], ...], described: Json) -> tuple[tuple[str, str], ...]:
    """Puts PyLate's markers of queries and documents, such as [Q], before their prompts."""
    texts = dict(prompts)
    for task in ("query", "document"):
        prefix = described.get(f"{task}_prefix") or ""
        if not isinstance(prefix, str):
            raise ConfigError(
                f"config_sentence_transformers.json: {task}_prefix={quote_value(prefix)}: must be a"
                " text."
            )
        texts[task] = prefix + (texts.get(task) or "").removeprefix(prefix)
    return tuple(texts.items())


def _mask(path: Path, late: LateInteractionSettings) -> LateInteractionSettings:
    config = read_object(
        path, {"skiplist_words": list, "skiplist_tasks": list, "keep_only_token_ids": list}
    )
    tasks = config.get("skiplist_tasks")
    words = config.get("skiplist_words") or []
    if not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{path}: skiplist_words={quote_value(words)}: must be texts.")
    if tasks is None:
        tasks = ("document",)
    return late._replace(
        skipped=tuple(words),
        skipped_tasks=tuple(tasks),
        kept=tuple(config.get("keep_only_token_ids") or ()),
    )


def _expanded(
    path: Path, late: LateInteractionSettings, expansion: Json
) -> LateInteractionSettings:
    length: int = expansion.get("length", 0)
    strategy = expansion.get("strategy")
    if strategy not in ("fixed", "min") or not is_kind(length, int) or length < 1:
        raise ConfigError(
            f"{path}: query_expansion={quote_value(expansion)}: must have a strategy, fixed or min,"
            " and a positive length."
        )
    return late._replace(
        expansion=strategy,
        expansion_length=length,
        expansion_token=expansion.get("token") or "",
        attends=bool(expansion.get("attend")),
    )


def _prompts(path: Path) -> tuple[tuple[tuple[str, str], ...], str]:
    config = _optional(path, {"prompts": dict, "default_prompt_name": str})
    prompts = config.get("prompts") or {}
    default = config.get("default_prompt_name") or ""
    if any(not isinstance(text, str) for text in prompts.values()):
        raise ConfigError(f"{path}: prompts={quote_value(prompts)}: must map names to texts.")
    if default and default not in prompts:
        raise ConfigError(
            f"{path}: default_prompt_name={quote_value(default)}: is none of prompts; add it there,"
            " or make it null."
        )
    return tuple(prompts.items()), default


def write_sentence_layers(folder: Path, layers: SentenceLayers, *, width: int) -> None:
    """Writes the files that make published weights a sentence-transformers directory.

    Args:
      folder: the directory.
      layers: a model trained here has them, without dense layers; `limit` is the maximum length of
        a text in tokens.
      width: the width of the encoder.
    """
    package = "sentence_transformers.models"
    config: Json = {"similarity_fn_name": layers.similarity, "prompts": dict(layers.prompts)}
    described: Json = {"max_seq_length": layers.limit, "do_lower_case": False}
    files: dict[str, tuple[str, Json]] = {"": ("Transformer", {})}
    if layers.kind == "sparse":
        package = "sentence_transformers.sparse_encoder.models"
        config["model_type"] = "SparseEncoder"
        pooled = {"pooling_strategy": layers.pooling, "activation_function": layers.activation}
        files = {"": ("MLMTransformer", {}), "1_SpladePooling": ("SpladePooling", pooled)}
    elif layers.kind == "multi_vector":
        late = layers.late
        config["model_type"] = "MultiVectorEncoder"
        described |= {"query_length": late.query_limit, "document_length": late.document_limit}
        if late.expansion:
            described["query_expansion"] = {
                "strategy": late.expansion,
                "length": late.expansion_length,
                "attend": late.attends,
            }
        masked = {"skiplist_words": late.skipped, "skiplist_tasks": late.skipped_tasks}
        files["1_MultiVectorMask"] = "MultiVectorMask", masked
        files["2_Normalize"] = "Normalize", {"module_input_name": "token_embeddings"}
    else:
        modes = {theirs: mode == layers.pooling for theirs, mode in MODES.items()}
        files["1_Pooling"] = "Pooling", {"word_embedding_dimension": width, **modes}
        files["2_Normalize"] = "Normalize", {}
    modules = []
    for i, (path, (kind, values)) in enumerate(files.items()):
        place = LATE_CLASSES[kind] if layers.kind == "multi_vector" else f"{package}.{kind}"
        modules.append({"idx": i, "name": str(i), "path": path, "type": place})
        if path:
            _write(folder / path / "config.json", values)
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", described)
    _write(folder / "config_sentence_transformers.json", config)


def trained_layers(fields: Json, limit: int) -> SentenceLayers | None:
    """Returns the layers of a model trained here; None if it is no sentence model.

    Args:
      fields: the `published_fields` of its objective; those that describe layers are removed.
      limit: its longest text in tokens.
    """
    pooling = fields.pop("pooling", "")
    kind = fields.pop("kind", "dense")
    activation = fields.pop("activation", "relu")
    prompts = tuple(fields.pop("prompts", {}).items())
    late = LateInteractionSettings(**fields.pop("late", {}))
    if kind == "sparse":
        return SentenceLayers(
            pooling,
            limit,
            prompts=prompts,
            similarity="dot",
            kind=kind,
            activation=activation,
        )
    if kind == "multi_vector":
        return SentenceLayers(
            limit=limit,
            normalize=True,
            prompts=prompts,
            similarity="maxsim",
            kind=kind,
            late=late,
        )
    if not pooling:
        return None
    return SentenceLayers(pooling, limit, normalize=True, prompts=prompts)


def copy_sentence_layers(source: Path, folder: Path) -> None:
    """Copies what sentence-transformers keeps beside the weights of an encoder."""
    for place, kind in _modules(source):
        if place and kind != STATIC and (source / place).is_dir():
            shutil.copytree(source / place, folder / place)
    for name in FILES:
        if (source / name).is_file():
            # A static embedding's table is written in the folder itself.
            text = (source / name).read_text(encoding="utf-8").replace(f"0_{STATIC}", "")
            (folder / name).write_text(text, encoding="utf-8")


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Returns the folder and kind of each layer; [] without a modules.json."""
    path = folder / "modules.json"
    if not path.exists():
        if (folder / "1_Pooling").is_dir():
            LOG.warning(
                "%s: without modules.json, 1_Pooling is not read, as in sentence-transformers.",
                folder,
            )
        return []
    listed = parse_object(b'{"modules": ' + read_bytes(path) + b"}", str(path)).get("modules")
    if not isinstance(listed, list):
        raise _bad_module(path, None)
    modules = []
    for one in listed:
        if not isinstance(one, dict):
            raise _bad_module(path, one)
        place = one.get("path")
        kind = one.get("type")
        if not isinstance(place, str) or not isinstance(kind, str):
            raise _bad_module(path, one)
        if place == ".":  # Model2Vec's spelling of the folder itself
            place = ""
        if Path(place).name != place or place == "..":
            raise _bad_module(path, one)
        modules.append((place, kind.rpartition(".")[2]))
    return modules


def _bad_module(path: Path, entry: object) -> ConfigError:
    return ConfigError(
        f"{path}: {quote_value(entry)}: must be a list of objects with type, and path, a folder in"
        " it."
    )


def _pooling(path: Path) -> tuple[str, bool]:
    """Returns the pooling, and whether it includes the prompt."""
    config = read_object(path)
    named = [name for name in MODES if config.get(name) is True]
    modes = config.get("pooling_mode", named or "mean")
    if not isinstance(modes, list):
        modes = [modes]
    known = MODES | NEWER
    if not modes or any(not isinstance(mode, str) or mode not in known for mode in modes):
        raise ConfigError(
            f"{path}: pools by {quote_value(modes)}: no such pooling; choose from"
            f" {', '.join(NEWER)}."
        )
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ConfigError(
            f"{path}: include_prompt={quote_value(include_prompt)}: must be true or false."
        )
    # old files have them in the order of this table
    return "+".join(known[mode] for mode in modes), include_prompt


def _dense(folder: Path, of: str = "sentence_embedding") -> DenseLayer:
    """Reads a dense layer, of the vector of a sentence or of its tokens' vectors."""
    path = folder / "config.json"
    config = read_object(path, DENSE)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    name = config.get("module_input_name", of)
    if activation not in TORCH_ACTIVATIONS or config.get("use_residual") or name != of:
        what = "the sentence's vector" if of == "sentence_embedding" else "the tokens' vectors"
        raise ConfigError(
            f"{path}: activation_function={quote_value(activation)}: read are"
            f" {', '.join(TORCH_ACTIVATIONS)}, of {what} and without a residual."
        )
    if not (folder / "model.safetensors").is_file():
        raise WeightsError(
            f"{folder}: no model.safetensors; save it again with sentence-transformers."
        )
    tensors = open_file(folder / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    out = config.get("out_features")
    expected = {"linear.weight": (out, config.get("in_features")), "linear.bias": (out,)}
    if "linear.weight" not in shapes or expected | shapes != expected:
        raise WeightsError(
            f"{folder}: has tensors of shapes {quote_value(shapes)}; expected {expected}."
        )
    kernel = tensors["linear.weight"].read().astype(np.float32)
    bias = np.zeros(kernel.shape[0], np.float32)
    if "linear.bias" in tensors:
        bias = tensors["linear.bias"].read().astype(np.float32)
    return DenseLayer(kernel.T, bias, activation)


def _optional(path: Path, kinds: Mapping[str, Kind]) -> Json:
    if not path.exists():
        return {}
    return read_object(path, kinds)


def _write(path: Path, values: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
