"""Rules for a tokenizer that its folder states in other files.

They are special tokens, the space before texts, lower case, and the side at which texts are cut.

A tokenizer.json may be right about none of these: transformers reads them from
tokenizer_config.json, and sentence-transformers from sentence_bert_config.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, normalizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, read_object
from flaxformer_lite.text.added_tokens import (
    LISTS,
    ROLES,
    Added,
    add_missing,
    content_of,
    read_added,
    read_optional,
)
from flaxformer_lite.text.saved_files import CONFIG
from flaxformer_lite.text.tokenizer_classes import follow_fields, name_class, rename_frame

SENTENCES = "sentence_bert_config.json"
SIDES = ("right", "left")
ENDLESS_TOKENS = 1 << 30  # tokens; the length is the caller's
# Fields that say how the class of a tokenizer makes its first steps.
STEPS = (
    "add_prefix_space",
    "clean_text",
    "do_lower_case",
    "keep_accents",
    "split_by_punct",
    "strip_accents",
    "tokenize_chinese_chars",
)
KINDS = {
    "truncation_side": str,
    "add_bos_token": bool,
    "tokenizer_class": str,
    **dict.fromkeys(STEPS, bool),
}


@dataclass(frozen=True)
class FolderRules:
    """Rules that a folder states beside its tokenizer's own file.

    Attributes:
      folder: the directory.
      tokens: the spelling of special tokens by role (bos, eos, ...).
      added: tokens that the tokenizer's file may lack.
      class_name: the class that makes its steps, such as `Bert`; "" for the generic one.
      steps: fields of that class.
      truncation_side: "right" or "left"; None: as the tokenizer's file says.
      lower_case: whether texts are first turned into lower case.
      add_bos: whether a tokenizer without a template puts its bos token before texts.
    """

    folder: Path = Path()
    tokens: Json = field(default_factory=dict)
    added: tuple[Added, ...] = ()
    class_name: str = ""
    steps: Mapping[str, bool | None] = field(default_factory=dict)
    truncation_side: str | None = None
    lower_case: bool = False
    add_bos: bool = False

    def apply(self, definition: str) -> str:
        """Returns a tokenizer.json that follows the rules; unchanged where there are none."""
        if self.class_name and self.steps:
            definition = follow_fields(definition, self.class_name, self.steps)
        if self.added:
            definition = add_missing(definition, self.added, self.folder)
        if self.class_name:
            definition = rename_frame(definition, self.class_name, self.tokens)
        if self.lower_case:
            tokenizer = Tokenizer.from_str(definition)
            usual = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *usual])
            definition = tokenizer.to_str()
        if self.truncation_side is not None:
            tokenizer = Tokenizer.from_str(definition)
            tokenizer.enable_truncation(ENDLESS_TOKENS, direction=self.truncation_side)
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
    class_name = name_class(config, read_optional(folder / "config.json"))
    steps = {}  # without a value, accents go with the case; other fields then say nothing
    for name in STEPS:
        if name in config and (config[name] is not None or name == "strip_accents"):
            steps[name] = config[name]
    lower_case = False
    if (folder / SENTENCES).is_file():
        asked = read_object(folder / SENTENCES, {"do_lower_case": bool})
        lower_case = bool(asked.get("do_lower_case"))
    add_bos = bool(config.get("add_bos_token"))
    added = tuple(read_added(folder, named))
    return FolderRules(folder, tokens, added, class_name, steps, side, lower_case, add_bos)


def with_tokens_map(folder: Path, config: Json) -> Json:
    """Returns tokenizer_config.json with special_tokens_map.json, which precedes it.

    As in transformers, a tokenizer_config.json with `added_tokens_decoder` is complete without it.
    """
    if "added_tokens_decoder" in config:
        return config
    precedes = read_optional(folder / "special_tokens_map.json")
    merged = config | precedes
    first = config.get(LISTS[0])
    second = precedes.get(LISTS[0])
    if isinstance(first, list) and isinstance(second, list):
        merged[LISTS[0]] = [*first, *second]
    return merged
