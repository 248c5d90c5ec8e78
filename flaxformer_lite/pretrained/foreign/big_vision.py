"""The text tower of big_vision's SigLIP: arrays in npz, by the paths of two_towers.

The arrays tell all sizes. They do not tell which vector stands for a text: SigLIP takes the last
(`pool_type="last"`), and so is it read.

Reference: big_vision/models/proj/image_text/{two_towers,text_transformer}.py and models/vit.py.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.files.read import Json, brief, shown
from flaxformer_lite.pretrained.foreign.arranged import Arranged, Computed, add
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name

FORM = "big_vision npz"
TOWER = re.compile(r"(?:params/)?txt/(.+)")
EMBEDDING = "Embed_0/embedding"
POSITIONS = "pos_embedding"
SECOND_POSITIONS = "Encoder_0/pos_embedding"  # older towers add both
QUERY = "MultiHeadDotProductAttention_0/query/kernel"
UP = "MlpBlock_0/Dense_0/kernel"
DTYPES = ("float32", "bfloat16", "float16")
BLOCK = re.compile(r"Encoder_0/encoderblock(?:_(\d+))?/(.+)")
ENDS = {
    EMBEDDING: ("embeddings.token_embedding.weight", "as_is"),
    POSITIONS: ("embeddings.position_embedding.weight", "positions"),
    "Encoder_0/encoder_norm/scale": ("final_layer_norm.weight", "as_is"),
    "Encoder_0/encoder_norm/bias": ("final_layer_norm.bias", "as_is"),
    "head/kernel": ("head.weight", "in"),
    "head/bias": ("head.bias", "as_is"),
}
MODULES = {
    "LayerNorm_0": "layer_norm1",
    "LayerNorm_1": "layer_norm2",
    "MlpBlock_0/Dense_0": "mlp.fc1",
    "MlpBlock_0/Dense_1": "mlp.fc2",
    "MultiHeadDotProductAttention_0/query": "self_attn.q_proj",
    "MultiHeadDotProductAttention_0/key": "self_attn.k_proj",
    "MultiHeadDotProductAttention_0/value": "self_attn.v_proj",
    "MultiHeadDotProductAttention_0/out": "self_attn.out_proj",
}
LAYOUTS: dict[tuple[str, int], tuple[tuple[int, ...], ...]] = {
    ("as_is", 1): ((0,),),
    ("as_is", 2): ((0,), (1,)),
    ("positions", 3): ((0, 1), (2,)),  # [1, L, D] -> [L, D]
    ("bias", 1): ((0,),),
    ("bias", 2): ((0, 1),),
    ("in", 2): ((1,), (0,)),
    ("in", 3): ((1, 2), (0,)),  # [D, N, H] -> [N H, D]
    ("out", 3): ((2,), (0, 1)),  # [N, H, D] -> [D, N H]
}


class NpzArray:
    """An array that stays in its npz until it is read."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype):
        self.path = path
        self.name = name
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                return file[self.name][index]
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise ValueError(str(error)) from None


def find(folder: Path) -> Path | None:
    """Returns the folder if one of its npz holds a text tower.

    Raises:
      WeightsError: several do.
    """
    towers = _towers(folder)
    if len(towers) > 1:
        names = ", ".join(sorted(path.name for path in towers))
        raise WeightsError(f"{folder}: several npz hold a text tower ({names}); leave one of them.")
    return folder if towers else None


def _towers(folder: Path) -> list[Path]:
    """Lists the npz of a folder that hold a text tower."""
    files = [path for path in folder.glob("*.npz") if zipfile.is_zipfile(path)]
    return [path for path in files if f"txt/{EMBEDDING}" in " ".join(_names(path))]


def describe(place: Path) -> list[str]:
    """Describes a tower in a line, and what was assumed in another."""
    config = read_config(place)
    return [
        f"{_towers(place)[0]}: the text tower of big_vision's two_towers:"
        f" {config['model_type']} with {config['num_hidden_layers']} layers, width"
        f" {config['hidden_size']}, {config['num_attention_heads']} heads, feed-forward"
        f" {config['intermediate_size']}, {config['max_position_embeddings']} positions, vocabulary"
        f" {config['vocab_size']:,}; its image tower is left out",
        'assumed: pool_type="last", as in SigLIP, for which the last token stands for a text',
        "it has no tokenizer: copy that of the model in transformers into the new folder",
    ]


def read_config(place: Path) -> Json:
    """Derives the config.json that transformers writes for the same tower.

    Raises:
      WeightsError: the file is damaged, or the tower is of another kind.
    """
    arrays = _open(place)
    shapes: dict[str, tuple[int, ...]] = {}
    layers = 0
    for path, array in arrays.items():
        for number, name, single in _by_layer(path, array):
            shapes[name] = single.shape
            layers = max(layers, number + 1)
    for name, rank in ((QUERY, 3), (UP, 2)):
        if len(shapes.get(name, ())) != rank:
            raise WeightsError(f"{place}: {name} is {brief(shapes.get(name, 'missing'))}; {READ}.")
    for name, rank in (("head/kernel", 2), (POSITIONS, 3), (EMBEDDING, 2)):
        shape = arrays[name].shape if name in arrays else None
        if shape is None or len(shape) != rank:
            raise WeightsError(f"{place}: txt/{name} is {brief(shape or 'missing')}; {READ}.")
    vocab_size, width = arrays[EMBEDDING].shape
    return {
        "model_type": "siglip_text_model",
        "architectures": ["SiglipTextModel"],
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": shapes[UP][1],
        "num_hidden_layers": layers,
        "num_attention_heads": shapes[QUERY][1],
        "max_position_embeddings": arrays[POSITIONS].shape[1],
        "projection_size": arrays["head/kernel"].shape[1],
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    }


READ = "text towers of SigLIP are read, with a head and the pooling of the last token"


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    """Opens the arrays of the tower by the names that transformers gives them.

    Raises:
      WeightsError: the file is damaged, or holds an array that SigLIP's text tower does not have.
    """
    arrays = _open(place)
    second = arrays.pop(SECOND_POSITIONS, None)
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        where = f"{place}: txt/{path}"
        layers = list(_by_layer(path, array))
        named = [(_in_layer(name), single, number) for number, name, single in layers]
        if not layers:
            alone = Arranged(array, tuple((axis,) for axis in range(len(array.shape))))
            named = [(ENDS.get(path), alone, -1)]
        for row, single, number in named:
            groups = LAYOUTS.get((row[1], len(single.shape))) if row else None
            if row is None or groups is None:
                raise WeightsError(
                    f"{place}: holds txt/{shown(path)} of shape {brief(list(array.shape))}; {READ}."
                )
            name = row[0] if number < 0 else f"encoder.layers.{number}.{row[0]}"
            add(tensors, name, Arranged(single.array, groups, single.index, where), where)
    table = ENDS[POSITIONS][0]
    if second is not None and table in tensors:
        where = f"{place}: txt/{SECOND_POSITIONS}"
        more = Arranged(second, LAYOUTS["positions", 3], where=where)
        if len(second.shape) != 3 or more.shape != tensors[table].shape:
            raise WeightsError(
                f"{where} has the shape {brief(list(second.shape))}, another than {POSITIONS}."
            )
        tensors[table] = Computed(tensors[table], lambda x: x + more.read())
    return tensors


def _in_layer(name: str) -> tuple[str, str] | None:
    """Returns the published name in a layer, and the layout."""
    owner, _, kind = name.rpartition("/")
    module = MODULES.get(owner)
    if module is None or kind not in ("scale", "bias", "kernel"):
        return None
    if kind == "scale":
        return f"{module}.weight", "as_is"
    if kind == "bias":
        return f"{module}.bias", "bias"
    return f"{module}.weight", "out" if owner.endswith("/out") else "in"


def _by_layer(path: str, array: NpzArray) -> Iterator[tuple[int, str, Arranged]]:
    """Yields the number of a layer, the name of a parameter in it, and the parameter.

    A scanned stack has its layers on axis 0.
    """
    match = BLOCK.fullmatch(path)
    if not match:
        return
    axes = range(len(array.shape))
    if match[1]:
        yield int(match[1]), match[2], Arranged(array, tuple((axis,) for axis in axes))
        return
    for layer in range(array.shape[0]):
        yield layer, match[2], Arranged(array, tuple((axis,) for axis in axes[:-1]), (layer,))


def _names(path: Path) -> list[str]:
    """Lists the arrays of an npz; none if it is damaged."""
    try:
        with zipfile.ZipFile(path) as file:
            return [name.removesuffix(".npy") for name in file.namelist()]
    except zipfile.BadZipFile:
        return []


def _open(place: Path) -> dict[str, NpzArray]:
    """Opens the arrays of the text tower by their paths in it; they are read later."""
    path = _towers(place)[0]
    arrays = {}
    for name in _names(path):
        match = TOWER.fullmatch(name)
        if not match:
            continue
        check_name(path, name)
        try:
            with zipfile.ZipFile(path) as file, file.open(f"{name}.npy") as entry:
                version = np.lib.format.read_magic(entry)
                read = np.lib.format.read_array_header_1_0
                if version != (1, 0):
                    read = np.lib.format.read_array_header_2_0
                shape, _, dtype = read(entry)
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise WeightsError(
                f"{path}: {name} is damaged ({shown(str(error))}); fetch it again."
            ) from None
        arrays[match[1]] = NpzArray(path, name, shape, dtype)
        if str(Arranged(arrays[match[1]], ()).dtype) not in DTYPES:
            raise WeightsError(
                f"{path}: {name} has dtype {dtype}; must be one of {', '.join(DTYPES)}."
            )
    return arrays
