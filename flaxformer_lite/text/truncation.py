"""The side at which texts that are too long are cut, as a folder says beside its tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import read_object

FILE = "tokenizer_config.json"
SIDES = ("right", "left")
ENDLESS = 1 << 30  # tokens; the length is the caller's


def side_of(folder: Path) -> str | None:
    """Returns the `truncation_side` of tokenizer_config.json; None if it says nothing."""
    path = folder / FILE
    if not path.exists():
        return None
    side = read_object(path, {"truncation_side": str}).get("truncation_side")
    if side is not None and side not in SIDES:
        raise ConfigError(f"{path}: truncation_side={side!r}: must be right or left.")
    return side


def with_side(definition: str, side: str) -> str:
    """Returns a tokenizer.json that says at which side texts are cut."""
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.enable_truncation(ENDLESS, direction=side)
    return tokenizer.to_str()


def check_not_left(file: Path) -> None:
    """Refuses a tokenizer that cannot say that texts are cut at the left, where its folder does."""
    if side_of(file.parent) == "left":
        raise ConfigError(
            f"{file.parent / FILE}: truncation_side='left': cannot be followed with {file.name};"
            " put a tokenizer.json beside it, or set truncation_side to right."
        )
