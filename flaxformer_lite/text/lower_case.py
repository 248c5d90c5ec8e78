"""Lower case that a folder asks for beside its tokenizer, as sentence-transformers does."""

from pathlib import Path

from tokenizers import Tokenizer, normalizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import read_object

FILE = "sentence_bert_config.json"


def is_asked(folder: Path) -> bool:
    """Returns whether sentence_bert_config.json asks for texts in lower case."""
    path = folder / FILE
    config = read_object(path, {"do_lower_case": bool}) if path.exists() else {}
    return bool(config.get("do_lower_case"))


def lowering(definition: str) -> str:
    """Returns a tokenizer.json that first turns texts into lower case."""
    tokenizer = Tokenizer.from_str(definition)
    usual = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *usual])
    return tokenizer.to_str()


def check_not_asked(file: Path) -> None:
    """Refuses a tokenizer that cannot turn texts into lower case, where its folder asks for it."""
    if is_asked(file.parent):
        raise ConfigError(
            f"{file.parent / FILE}: do_lower_case: cannot be done with {file.name}; put a"
            " tokenizer.json beside it, or set do_lower_case to false."
        )
