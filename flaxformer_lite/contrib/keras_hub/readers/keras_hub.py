"""Presets of KerasHub: config.json of a backbone, arrays in h5, and the assets of its tokenizer.

A preset of a task has task.json and its arrays besides. Arrays are named by the classes of layers,
numbered in the order of `model.layers`: layers/transformer_encoder_1/_feedforward_layer_norm/vars/0
is the scale of a norm in the second layer.

Reference: keras_hub/src/utils/preset_utils.py.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.contrib.keras_hub import tokenizer
from flaxformer_lite.contrib.keras_hub.kinds import (
    KINDS,
    ROBERTA_PADDING,
    Fields,
    Kind,
    Row,
)
from flaxformer_lite.files.read import Json, quote_name, quote_value, read_object
from flaxformer_lite.pretrained.arranged_tensors import Arranged, Readable, add_tensor
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name

FORM = "KerasHub preset"
WEIGHTS = "model.weights.h5"
SHARDS = "model.weights.json"
TASK = "task.json"
TASK_WEIGHTS = "task.weights.h5"
DTYPES = ("float32", "bfloat16", "float16")
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
}


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
    layers = config.get("num_hidden_layers", config.get("num_layers"))
    width = config.get("hidden_size", config.get("d_model"))
    lines = [
        f"{place}: a preset of KerasHub, {backbone['class_name']}"
        f"{f' with {task[0]}' if task[0] else ''}: {config['model_type']} with {layers} layers,"
        f" width {width}, vocabulary {config['vocab_size']:,}; read as {config['architectures'][0]}"
    ]
    if task[0] and _task_name(task[0]) not in kind.tasks:
        lines.append(
            f"the head of its {task[0]} computes what no class of transformers does: left out"
        )
    if not tokenizer.assets(place, kind):
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
    config = kind.config(fields)
    if fields.left:
        name = sorted(fields.left)[0]
        raise WeightsError(
            f"{path}: {name}={quote_value(values[name])}: a field that is not known here and might"
            " change the numbers."
        )
    name, settings = _task(place)
    architecture, _ = kind.tasks.get(_task_name(name), (kind.bare, {}))
    if config["model_type"] == "gemma2":
        architecture = architecture.replace("Gemma", "Gemma2")
    config["architectures"] = [architecture]
    if architecture.endswith("SequenceClassification"):
        if settings.get("activation") not in (None, "linear", "softmax"):
            raise WeightsError(
                f"{place / TASK}: activation={quote_value(settings['activation'])}: logits are read"
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
    tokenizer.write(place, _kind(place), made)


def _completed(config: Json, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds rows that transformers has besides."""
    table = "embeddings.position_embeddings.weight"
    if config["model_type"] == "roberta" and table in tensors:
        positions = tensors[table]
        zeros = np.zeros((ROBERTA_PADDING, positions.shape[-1]), positions.dtype)
        tensors[table] = Tensor(np.concatenate([zeros, positions.read()]))
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
            raise WeightsError(f"{file}: holds {quote_name(path)}, which is not known here.")
        name, layout = found
        rank = len(array.shape)
        if (layout, rank) not in LAYOUTS:
            raise WeightsError(f"{file}: {path} has {rank} axes; no such layer has.")
        where = f"{file}: {path}"
        add_tensor(
            tensors, prefix + name, Arranged(array, LAYOUTS[layout, rank], where=where), where
        )
    return tensors


def _kind(place: Path) -> Kind:
    path = place / "config.json"
    name = _read(path).get("class_name")
    if name not in KINDS:
        raise WeightsError(
            f"{path}: a preset of KerasHub ({quote_value(name)}), which is not read;"
            f" {', '.join(KINDS)} are. There, export_to_transformers(path) may write it."
        )
    if not _read(path).get("config"):
        raise WeightsError(f"{path}: a preset of KerasHub without sizes; fetch it again.")
    return KINDS[name]


def _read(path: Path) -> Json:
    return read_object(path, {"config": dict}, error=WeightsError)


def _task(place: Path) -> tuple[str, Json]:
    """Returns the class of the task, and its config; "" if there is none."""
    if not (place / TASK).is_file():
        return "", {}
    task = _read(place / TASK)
    return str(task.get("class_name", "")), task.get("config") or {}


def _task_name(name: str) -> str:
    """Returns what a task does, of its class: TextClassifier for BertTextClassifier."""
    match = re.search(r"(TextClassifier|MaskedLM|CausalLM|Seq2SeqLM)$", name)
    return match[1] if match else ""


def _check_dtype(path: Path, dtype: object) -> None:
    """Refuses quantized layers, whose policy has another class, or is a map of policies."""
    name = dtype.get("class_name") if isinstance(dtype, dict) else "DTypePolicy"
    if name != "DTypePolicy":
        raise WeightsError(
            f"{path}: dtype={quote_value(name)}: quantized weights of KerasHub are not read; save"
            " the preset in float32 or bfloat16."
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
            raise WeightsError(
                f"{place / SHARDS}: {quote_value(file)} is no plain name in its folder."
            )
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
        why = quote_name(str(error))
        raise WeightsError(f"{path}: not an h5 file, or damaged ({why}); fetch it again.") from None
    for name, array in arrays.items():
        dtype = str(Arranged(array, ()).dtype)
        if name.startswith("layers/") and dtype not in DTYPES:
            raise WeightsError(
                f"{path}: {name} has dtype {dtype}; must be one of {', '.join(DTYPES)}: quantized"
                " weights are not read."
            )
    return arrays


def _names(h5py: Any, group: Any, above: str = "", seen: set[Any] | None = None) -> list[str]:
    """Lists the arrays of a group; links into other files are not followed.

    Each group is visited once: links may form a circle, or double the paths at each level.
    """
    if seen is None:
        seen = set()
    seen.add(group)
    names = []
    for key in group:
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            continue
        item = group[key]
        path = f"{above}{key}"
        if isinstance(item, h5py.Group):
            if item not in seen:
                names += _names(h5py, item, f"{path}/", seen)
        elif re.fullmatch(r".+/vars/\d+", path):
            names.append(path)
    return names
