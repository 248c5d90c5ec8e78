"""Reads the weight files of a published directory.

They are one safetensors file, several with an index, Flax's old msgpack, or the files of
another program, for which a package of contrib has a reader.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from flaxformer_lite import hints, registry
from flaxformer_lite.files.publish import recover_directory
from flaxformer_lite.files.read import Json, quote_name, quote_value, read_bytes, read_object
from flaxformer_lite.pretrained import wrappers
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, open_file
from flaxformer_lite.pretrained.trainer_names import strip_wrappers

OTHERS = {
    "pytorch_model.bin": "a pickle, which can run any code when it is opened",
    "pytorch_model.bin.index.json": (
        "an index of pickles, which can run any code when they are opened"
    ),
    "model.ckpt.index": "a TensorFlow checkpoint",
    "tf_model.h5": "Keras weights",
}
# the config of sentence-transformers' static embeddings, whose folders have none
STATIC_CONFIG = {"model_type": "static_embedding", "architectures": ["StaticEmbeddingModel"]}
UNREAD = {  # files of checkpoints that are not read, by pattern
    "manifest.ocdbt": "an Orbax checkpoint of a program that has no reader here",
    "*/manifest.ocdbt": "an Orbax checkpoint of a program that has no reader here",
    "_CHECKPOINT_METADATA": "an Orbax checkpoint of a program that has no reader here",
    "*.weights.h5": "weights of Keras",
    "*.keras": "a model of Keras",
    "model.ckpt-*.index": "a TensorFlow checkpoint",
    "*.npz": "arrays of NumPy, damaged or of a program that has no reader here",
}


class Reader(Protocol):
    """A module that reads the checkpoints of another program: a file of `contrib/*/readers`.

    It maps the arrays of a folder to the names, and its config to the config.json, that
    transformers writes for the same model; the rest is as for published weights. `folder` is what
    `find` returned. Readers are imported only for folders without files of transformers.

    Attributes:
      FORM: what it reads, in a word or two.
    """

    FORM: str

    def find(self, folder: Path) -> Path | None:
        """Returns the folder that holds the checkpoint, or None if there is none."""

    def describe(self, folder: Path) -> list[str]:
        """Returns lines that say what was found, and what was assumed."""

    def read_config(self, folder: Path) -> Json:
        """Returns the config.json of transformers."""

    def open_weights(self, folder: Path, config: Json) -> dict[str, Tensor]:
        """Returns the tensors by the names of transformers, without reading them."""

    def write_tokenizer(self, folder: Path, made: Path) -> None:
        """Writes the files of the tokenizer as transformers names them; a reader may lack this."""


class Foreign(NamedTuple):
    """A checkpoint of another program, in a folder, and what reads it."""

    reader: Reader
    folder: Path


def find_foreign(folder: Path) -> Foreign | None:
    """Finds the checkpoint of another program in a folder without weights of transformers.

    Raises:
      WeightsError: there are files of two programs.
    """
    if any(folder.glob("model*.safetensors*")) or any(folder.glob("flax_model*")):
        return None
    found = []
    for name in registry.available("readers"):
        reader = registry.resolve("readers", name)
        inside = reader.find(folder)
        if inside:
            found.append(Foreign(reader, inside))
    if len(found) > 1:
        forms = " and a ".join(foreign.reader.FORM for foreign in found)
        raise WeightsError(f"{folder}: holds a {forms}; pass a folder with one of them.")
    return found[0] if found else None


def is_static(folder: Path) -> bool:
    """Returns whether sentence-transformers says, where no config.json does, that it is a table."""
    modules = folder / "modules.json"
    if (folder / "config.json").exists() or not modules.is_file():
        return False
    return b"StaticEmbedding" in read_bytes(modules)


def check_exists(folder: Path) -> None:
    """Refuses a path that is no directory, such as a model's name on a hub, and files of llama.cpp.

    Raises:
      WeightsError: it says how to get a directory that is read.
    """
    if folder.suffix == ".gguf":
        raise WeightsError(_explain_gguf(folder))
    if folder.is_dir():
        files = sorted(folder.glob("*.gguf"))
        if files and not (folder / "config.json").exists():
            raise WeightsError(_explain_gguf(files[0]))
        return
    address = hints.published_address(str(folder))
    if address:
        raise WeightsError(f"{folder}: no such directory; did you mean {address}?")
    raise WeightsError(
        f"{folder}: no such directory; the address of a model is gs://, s3:// or hf://ORG/NAME."
    )


def _explain_gguf(file: Path) -> str:
    """Says how a file of llama.cpp becomes a directory.

    transformers takes the weights, which are floats by then, for quantized ones, so that both
    traces of that have to go before it saves them.
    """
    at = f"{str(file.parent)!r}, gguf_file={file.name!r}"
    return (
        f"{file}: a file of llama.cpp, which is not read here; where transformers, gguf and torch"
        ' are installed, this writes a directory NEW that is: python -c "from transformers import'
        f" AutoModelForCausalLM as M, AutoTokenizer as T; m = M.from_pretrained({at});"
        " m.hf_quantizer = None; del m.config.quantization_config; m.save_pretrained('NEW');"
        f" T.from_pretrained({at}).save_pretrained('NEW')\""
    )


def read_config(folder: Path) -> dict:
    """Reads config.json; of a model that sees or hears too, the config of its text half."""
    path = folder / "config.json"
    recover_directory(folder)
    if not path.exists():
        _follow(path)
        check_exists(folder)
        if is_static(folder):
            return dict(STATIC_CONFIG)
        if (folder / "adapter_config.json").is_file():
            raise WeightsError(
                f"{folder}: an adapter alone; pass its model's directory, with adapter= this one."
            )
        foreign = find_foreign(folder)
        if foreign:
            return foreign.reader.read_config(foreign.folder)
        for pattern, what in UNREAD.items():
            if any(folder.glob(pattern)):
                raise WeightsError(
                    f"{folder}: {what}, which is not read."
                    " docs/migration.md says how weights of other tools come here."
                )
        raise WeightsError(
            f"{folder}: no config.json; pass the directory that save_pretrained wrote."
        )
    config = read_object(path, error=WeightsError)
    if "model_type" in config:
        return wrappers.flatten(config, folder)
    foreign = find_foreign(folder)
    if foreign:
        return foreign.reader.read_config(foreign.folder)
    if str(config.get("module")).startswith("keras"):
        raise WeightsError(
            f"{path}: a preset of KerasHub, which is not read; its"
            " model.export_to_transformers(FOLDER) writes a folder that is."
        )
    return config


def open_weights(folder: Path) -> dict[str, Tensor]:
    """Opens all tensors of a directory by their published names; safetensors are read lazily.

    Of a model that sees or hears too, only its text half is opened.

    Raises:
      WeightsError: there are no weights that can be read, or a file is damaged or outside the
        directory.
    """
    tensors = strip_wrappers(_open_all(folder), str(folder))
    if (folder / "config.json").is_file():
        published = read_object(folder / "config.json", error=WeightsError)
        return wrappers.take_text(published, tensors, folder)
    return tensors


def _open_all(folder: Path) -> dict[str, Tensor]:
    if (folder / "model.safetensors").is_file():
        return open_file(folder / "model.safetensors")
    if (folder / "model.safetensors.index.json").is_file():
        return _open_shards(folder, "model.safetensors.index.json", open_file)
    from flaxformer_lite.pretrained import flax_msgpack  # for folders without safetensors

    if (folder / "flax_model.msgpack").is_file():
        flat = flax_msgpack.open_file(folder / "flax_model.msgpack")
        return flax_msgpack.named_as_torch(flat)
    if (folder / "flax_model.msgpack.index.json").is_file():
        index = "flax_model.msgpack.index.json"
        return flax_msgpack.named_as_torch(_open_shards(folder, index, flax_msgpack.open_file))
    foreign = find_foreign(folder)
    if foreign:
        return foreign.reader.open_weights(foreign.folder, read_config(folder))
    for name in ("model.safetensors", "model.safetensors.index.json", "flax_model.msgpack"):
        _follow(folder / name)
    for name, what in OTHERS.items():
        if (folder / name).is_file():
            raise WeightsError(
                f"{folder / name}: {what}, and is not read here. Convert it once where transformers"
                " and torch are installed:"
                f" AutoModel.from_pretrained({str(folder)!r}).save_pretrained(...,"
                " safe_serialization=True)."
            )
    raise WeightsError(
        f"{folder}: no model.safetensors, model.safetensors.index.json or flax_model.msgpack."
    )


def _follow(path: Path) -> None:
    """Refuses a broken link, as in a cache that was partly deleted."""
    if path.is_symlink() and not path.exists():
        raise WeightsError(
            f"{path}: a link to {os.readlink(path)}, which is not there; fetch it again."
        )


def _open_shards(folder: Path, index_name: str, open_one: Callable[[Path], dict]) -> dict:
    path = folder / index_name
    weight_map = read_object(path, {"weight_map": dict}, error=WeightsError).get("weight_map")
    if weight_map is None or not all(isinstance(file, str) for file in weight_map.values()):
        raise WeightsError(
            f"{path}: must be a JSON object with a weight_map that gives each tensor's file."
        )
    files = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file or file in ("", ".", "..") or not file.isprintable():
            raise WeightsError(
                f"{path}: names the file {quote_value(file)}, which is no plain name in its folder."
            )
        if not (folder / file).is_file():
            _follow(folder / file)
            raise WeightsError(f"{path}: names {file}, which is missing; fetch that part.")
        files[file] = open_one(folder / file)
    tensors = {}
    for name, file in weight_map.items():
        if name not in files[file]:
            raise WeightsError(
                f"{path}: says that {quote_name(name)} is in {file}, which does not hold it."
            )
        tensors[name] = files[file][name]
    for file, inside in files.items():
        extra = sorted(set(inside) - {name for name, where in weight_map.items() if where == file})
        if extra:
            raise WeightsError(f"{path}: does not mention {extra[0]}, which {file} holds.")
    return tensors
