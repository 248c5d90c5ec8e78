"""Rules for a tokenizer that its folder states in other files.

They are special tokens, the space before texts, lower case, and the side at which texts are cut.

A tokenizer.json may be right about none of these: transformers reads them from
tokenizer_config.json, and sentence-transformers from sentence_bert_config.json.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, normalizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, read_object
from flaxformer_lite.text.saved_files import CONFIG

SENTENCES = "sentence_bert_config.json"
SIDES = ("right", "left")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # the order in which they are added
ENDLESS = 1 << 30  # tokens; the length is the caller's
KINDS = {
    "truncation_side": str,
    "add_prefix_space": bool,
    "add_bos_token": bool,
    "tokenizer_class": str,
}
# Classes for which transformers takes tokenizer.json as it is; others rebuild its first step.
GENERIC = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")


@dataclass(frozen=True)
class FolderRules:
    """Rules that a folder states beside its tokenizer's own file.

    Attributes:
      tokens: the spelling of special tokens by role (bos, eos, ...).
      truncation_side: "right" or "left"; None: as the tokenizer's file says.
      prefix_space: whether texts get a space before them; None: as the tokenizer's file says.
      lower_case: whether texts are first turned into lower case.
      add_bos: whether a tokenizer without a template puts its bos token before texts.
    """

    tokens: Json = field(default_factory=dict)
    truncation_side: str | None = None
    prefix_space: bool | None = None
    lower_case: bool = False
    add_bos: bool = False

    def apply(self, definition: str) -> str:
        """Returns a tokenizer.json that follows the rules; unchanged where there are none."""
        if self.prefix_space is not None:
            definition = _with_prefix_space(definition, self.prefix_space)
        if self.lower_case:
            tokenizer = Tokenizer.from_str(definition)
            usual = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *usual])
            definition = tokenizer.to_str()
        if self.truncation_side is not None:
            tokenizer = Tokenizer.from_str(definition)
            tokenizer.enable_truncation(ENDLESS, direction=self.truncation_side)
            definition = tokenizer.to_str()
        return definition

    def check_followed(self, file: Path) -> None:
        """Refuses a file that is no tokenizer.json where the folder asks for what only one can.

        Raises:
          ConfigError: names the field and the way out.
        """
        if self.lower_case:
            raise ConfigError(
                f"{file.parent / SENTENCES}: do_lower_case: cannot be done with {file.name}; put a"
                " tokenizer.json beside it, or set do_lower_case to false."
            )
        if self.truncation_side == "left":
            raise ConfigError(
                f"{file.parent / CONFIG}: truncation_side='left': cannot be followed with"
                f" {file.name}; put a tokenizer.json beside it, or set truncation_side to right."
            )


def read_rules(folder: Path) -> FolderRules:
    """Reads the rules of a folder; none where it has no such files.

    Raises:
      ConfigError: a field has another type or value than it can have.
    """
    path = folder / CONFIG
    config: Json = {}
    if path.is_file():
        config = read_object(path, KINDS)
    side = config.get("truncation_side")
    if side is not None and side not in SIDES:
        raise ConfigError(f"{path}: truncation_side={side!r}: must be right or left.")
    named = with_tokens_map(folder, config)
    tokens = {}
    for role in ROLES:
        token = content_of(named.get(f"{role}_token"))
        if token:
            tokens[role] = token
    prefix_space = None
    if (config.get("tokenizer_class") or GENERIC[0]) not in GENERIC:
        prefix_space = config.get("add_prefix_space")
    lower_case = False
    if (folder / SENTENCES).is_file():
        asked = read_object(folder / SENTENCES, {"do_lower_case": bool})
        lower_case = bool(asked.get("do_lower_case"))
    add_bos = bool(config.get("add_bos_token"))
    return FolderRules(tokens, side, prefix_space, lower_case, add_bos)


def with_tokens_map(folder: Path, config: Json) -> Json:
    """Returns tokenizer_config.json with special_tokens_map.json, which precedes it.

    As in transformers, a tokenizer_config.json with `added_tokens_decoder` is complete without it.
    """
    if "added_tokens_decoder" in config:
        return config
    return config | read_optional(folder / "special_tokens_map.json")


def content_of(token: object) -> str | None:
    """Returns the spelling of a token, which is a text or an object; None for anything else."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def read_optional(path: Path) -> Json:
    """Reads a JSON object; {} if there is no file."""
    if not path.is_file():
        return {}
    return read_object(path)


def _with_prefix_space(definition: str, prefix_space: bool) -> str:
    """Returns a tokenizer.json whose first step puts a space before texts, or none."""
    values = json.loads(definition)
    changed = False
    for step in _steps(values.get("pre_tokenizer")):
        if step["type"] == "ByteLevel":
            changed |= step["add_prefix_space"] != prefix_space
            step["add_prefix_space"] = prefix_space
        if step["type"] == "Metaspace":
            scheme = "first" if prefix_space else "never"
            changed |= step.get("prepend_scheme") != scheme
            step["prepend_scheme"] = scheme
    if not changed:  # the text as it was, as tokenizers are told apart by its hash
        return definition
    return json.dumps(values, ensure_ascii=False)


def _steps(first: Json | None) -> Iterator[Json]:
    """Yields the steps of a pre-tokenizer, which may be a sequence of them."""
    if first is None:
        return
    if first["type"] != "Sequence":
        yield first
        return
    for step in first["pretokenizers"]:
        yield from _steps(step)
