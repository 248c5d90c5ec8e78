"""Folders of sentence-transformers that keep a static embedding in 0_StaticEmbedding."""

import shutil
from pathlib import Path

from flaxformer_lite.contrib.static_embeddings.static_tokenizer import INSIDE
from flaxformer_lite.files.read import Json
from flaxformer_lite.pretrained.folder import STATIC_CONFIG
from flaxformer_lite.pretrained.safetensors import Tensor, open_file
from flaxformer_lite.text.saved_files import JSON

FORM = "static embedding"
WEIGHTS = "model.safetensors"


def find(folder: Path) -> Path | None:
    """Returns the inner folder, if there is one."""
    if (folder / INSIDE / WEIGHTS).is_file():
        return folder / INSIDE
    return None


def describe(place: Path) -> list[str]:
    return [f"{place}: a static embedding of sentence-transformers"]


def read_config(place: Path) -> Json:
    return dict(STATIC_CONFIG)


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    return open_file(place / WEIGHTS)


def write_tokenizer(place: Path, made: Path) -> None:
    shutil.copyfile(place / JSON, made / JSON)
