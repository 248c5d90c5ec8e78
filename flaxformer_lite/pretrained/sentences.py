"""The format of sentence-transformers: pooling, and the layers after it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, Kind, brief, parse_object, read_bytes, read_object
from flaxformer_lite.pretrained.safetensors import WeightsError, open_file

FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
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
ACTIVATIONS: dict[str, Any] = {
    "Identity": np.asarray,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
}
DENSE = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}


class Dense(NamedTuple):
    """A dense layer after pooling."""

    kernel_DO: np.ndarray
    bias_O: np.ndarray
    activation: str


class SentenceLayers(NamedTuple):
    """The layers after the encoder of a sentence model."""

    # a name of nn/functions/pooling.py, or several joined by +; empty where there is none
    pooling: str = ""
    limit: int | None = None  # longest text in tokens; None is no limit
    normalize: bool = True  # whether vectors have length one
    dense: tuple[Dense, ...] = ()  # layers between pooling and normalization
    prompts: tuple[tuple[str, str], ...] = ()  # names of what is put before a text, and the texts
    default_prompt: str = ""  # the name of the prompt of a text for which none is chosen
    include_prompt: bool = True  # whether the prompt's tokens are pooled too
    similarity: str = "cosine"  # of two vectors, as the directory's authors compare them

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
        return dict(self.prompts).get(task, "") if task else self.prompt()

    def finish(self, pooled_ND: np.ndarray) -> np.ndarray:
        """Applies what comes after pooling, in float32."""
        for layer in self.dense:
            pooled_ND = ACTIVATIONS[layer.activation](pooled_ND @ layer.kernel_DO + layer.bias_O)
        lengths_N1 = (
            np.linalg.norm(pooled_ND, axis=-1, keepdims=True) if self.normalize else np.float32(1)
        )
        return pooled_ND / np.maximum(lengths_N1, np.finfo(np.float32).tiny)


def read_sentence_layers(folder: Path) -> SentenceLayers:
    """Reads the layers of a sentence model's directory; the defaults where there is nothing.

    Raises:
      ConfigError, WeightsError: it pools in another way, or has other layers.
    """
    limit = _optional(folder / "sentence_bert_config.json", {"max_seq_length": int}).get(
        "max_seq_length"
    )
    modules = _modules(folder)
    pooling = ""
    include_prompt = True
    normalize = False
    dense = []
    for place, kind in modules:
        if kind == "Pooling":
            pooling, include_prompt = _pooling(folder / place / "config.json")
        elif kind == "Dense" and pooling and not normalize:
            dense.append(_dense(folder / place))
        elif kind == "Normalize" and pooling:
            normalize = True
        elif kind != "Transformer" or pooling or place:
            raise ConfigError(
                f"{folder}/modules.json: a layer {brief(kind)} in {brief(place)}: read are"
                " Transformer, in the directory itself, Pooling, Dense and Normalize, in this"
                " order."
            )
    described = folder / "config_sentence_transformers.json"
    prompts, default = _prompts(described)
    return SentenceLayers(
        pooling,
        limit,
        normalize or not modules,
        tuple(dense),
        prompts,
        default,
        include_prompt,
        similarity=_optional(described, {"similarity_fn_name": str}).get("similarity_fn_name")
        or "cosine",
    )


def _prompts(path: Path) -> tuple[tuple[tuple[str, str], ...], str]:
    config = _optional(path, {"prompts": dict, "default_prompt_name": str})
    prompts = config.get("prompts") or {}
    default = config.get("default_prompt_name") or ""
    if any(not isinstance(text, str) for text in prompts.values()):
        raise ConfigError(f"{path}: prompts={brief(prompts)}: must map names to texts.")
    if default and default not in prompts:
        raise ConfigError(
            f"{path}: default_prompt_name={brief(default)}: is none of prompts; add it there, or"
            " make it null."
        )
    return tuple(prompts.items()), default


def write_sentence_layers(folder: Path, *, pooling: str, width: int, limit: int) -> None:
    """Writes the files that make published weights a sentence-transformers directory.

    Its vectors are normalized.

    Args:
      folder: the directory.
      pooling: a name in nn/functions/pooling.py.
      width: the width of the encoder.
      limit: the maximum length of a text in tokens.
    """
    kinds = enumerate(
        {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}.items()
    )
    package = "sentence_transformers.models"
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{package}.{kind}"}
        for i, (path, kind) in kinds
    ]
    modes = {theirs: mode == pooling for theirs, mode in MODES.items()}
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    _write(folder / "2_Normalize" / "config.json", {})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})


def copy_sentence_layers(source: Path, folder: Path) -> None:
    """Copies what sentence-transformers keeps beside the weights of an encoder."""
    for place, _ in _modules(source):
        if place and (source / place).is_dir():
            shutil.copytree(source / place, folder / place)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Returns the folder and kind of each layer.

    Without a modules.json, the pooling layer alone; [] if there is none either.
    """
    path = folder / "modules.json"
    if not path.exists():
        return (
            [("1_Pooling", "Pooling"), ("", "Normalize")] if (folder / "1_Pooling").is_dir() else []
        )
    listed = parse_object(b'{"modules": ' + read_bytes(path) + b"}", str(path)).get("modules")
    modules = []
    for one in listed if isinstance(listed, list) else [None]:
        place, kind = (one.get("path"), one.get("type")) if isinstance(one, dict) else (None, None)
        if not (
            isinstance(place, str) and isinstance(kind, str) and Path(place).name == place != ".."
        ):
            raise ConfigError(
                f"{path}: {brief(one)}: must be a list of objects with type, and path, a folder"
                " in it."
            )
        modules.append((place, kind.rpartition(".")[2]))
    return modules


def _pooling(path: Path) -> tuple[str, bool]:
    """Returns the pooling, and whether it includes the prompt."""
    config = read_object(path)
    named = [name for name in MODES if config.get(name) is True]
    modes = config.get("pooling_mode", named or "mean")
    modes = modes if isinstance(modes, list) else [modes]
    known = MODES | NEWER
    if not modes or any(not isinstance(mode, str) or mode not in known for mode in modes):
        raise ConfigError(
            f"{path}: pools by {brief(modes)}: no such pooling; choose from {', '.join(NEWER)}."
        )
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ConfigError(f"{path}: include_prompt={brief(include_prompt)}: must be true or false.")
    # their order in old files is that of this table
    return "+".join(known[mode] for mode in modes), include_prompt


def _dense(folder: Path) -> Dense:
    path = folder / "config.json"
    config = read_object(folder / "config.json", DENSE)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    name = config.get("module_input_name", "sentence_embedding")
    if activation not in ACTIVATIONS or config.get("use_residual") or name != "sentence_embedding":
        raise ConfigError(
            f"{path}: activation_function={brief(activation)}: read are {', '.join(ACTIVATIONS)},"
            " of the sentence's vector and without a residual."
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
        raise WeightsError(f"{folder}: has tensors of shapes {brief(shapes)}; due are {expected}.")
    kernel, *bias = (
        tensors[name].read().astype(np.float32) for name in expected if name in tensors
    )
    return Dense(kernel.T, bias[0] if bias else np.zeros(kernel.shape[0], np.float32), activation)


def _optional(path: Path, kinds: Mapping[str, Kind]) -> Json:
    return read_object(path, kinds) if path.exists() else {}


def _write(path: Path, values: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
