"""The tokenizer of a KerasHub preset, as files of transformers.

Reference: keras_hub/src/models/*/*_tokenizer.py.
"""

import json
import shutil
from pathlib import Path

from flaxformer_lite.contrib.keras_hub.kinds import Kind
from flaxformer_lite.files.read import Json, read_object
from flaxformer_lite.pretrained.safetensors import WeightsError


def assets(place: Path, kind: Kind) -> dict[Path, str]:
    """Returns the files of the tokenizer, and their names in transformers; {} unless all exist."""
    folder = place / "assets" / "tokenizer"
    named = {folder / theirs: name for theirs, name in kind.files.items()}
    return named if all(path.is_file() for path in named) else {}


def write(place: Path, kind: Kind, made: Path) -> None:
    """Writes the files of the tokenizer into `made`; nothing if the preset has none.

    Raises:
      WeightsError: a file is damaged.
    """
    files = assets(place, kind)
    if not files:
        return
    settings: Json = read_object(place / "tokenizer.json", error=WeightsError).get("config") or {}
    config = dict(kind.tokenizer)
    for source, name in files.items():
        shutil.copyfile(source, made / name)
    if config["tokenizer_class"] == "BertTokenizer":
        config["do_lower_case"] = bool(settings.get("lowercase", False))
        config["strip_accents"] = bool(settings.get("strip_accents", False))
    (made / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
