"""Reads the tokenizer of published weights, with its special tokens.

It is tokenizer.json, or one of the older formats.
"""

import dataclasses
from pathlib import Path

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, quote_value, read_object, read_text
from flaxformer_lite.pretrained import hf_config
from flaxformer_lite.pretrained.folder import (
    STATIC_CONFIG,
    check_exists,
    is_static,
)
from flaxformer_lite.text import (
    chat_template,
    older_files,
    saved_files,
    special_tokens,
    tokenizer as plain,
)
from flaxformer_lite.text.bounded_steps import check_steps
from flaxformer_lite.text.folder_rules import FolderRules, read_rules, with_tokens_map
from flaxformer_lite.text.published_tokenizer import JSON, PublishedTokenizer

BYTES = "tokenizer.bytes"
# Files of tokenizers that are not read for every model; only a tokenizer.json is complete.
OTHERS = (
    "sentencepiece.bpe.model",
    "source.spm",
    "spiece.model",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "tokenizer_config.json",
)
KINDS = {
    "padding_side": str,
    "truncation_side": str,
    "model_max_length": float,
}
TEMPLATE = "chat_template.jinja"
LARGEST_TEMPLATE = 1 << 20  # bytes


def read_tokenizer(folder: Path, *, family: str | None = None) -> PublishedTokenizer:
    """Reads the tokenizer of a directory of published weights.

    Args:
      folder: a directory on this machine, with the files that `load_tokenizer` names.
      family: as in `load_pretrained`.

    Raises:
      ConfigError: no tokenizer that we read, or a damaged one.
    """
    inner = read_plugin_tokenizer(folder)
    if inner:
        return PublishedTokenizer(inner, {}, "", inner.spelled)
    config = with_tokens_map(folder, _read(folder / "tokenizer_config.json"))
    template = _chat_template(folder, config)
    try:
        if (folder / JSON).is_file():
            definition = read_text(folder / JSON, limit=saved_files.MAX_TOKENIZER_BYTES)
            return _of_json(definition, folder / JSON, config, template)
        if (folder / BYTES).is_file():
            model = hf_config.family_of(_read(folder / "config.json"), folder, family).Model
            return framed(plain.load(folder / BYTES), model.skeleton, template)
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"{folder / JSON}: cannot be read as a tokenizer ({error}).") from None
    published = _read(folder / "config.json")
    kind = published.get("model_type")
    made = older_files.make_tokenizer(folder)
    if made:
        named = {f"{role}_token": token for role, token in made.tokens.items()}
        return _of_json(made.definition, folder, config | named, template)
    numbered = older_files.read_numbered(folder, kind, config, template)
    if numbered:
        return numbered
    unread = [name for name in OTHERS if (folder / name).is_file()]
    if unread:
        raise ConfigError(
            f"{folder}: {unread[0]} of a {kind} is not read without a tokenizer.json. Make one"
            " where transformers is installed:"
            f" AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})."
        )
    check_exists(folder)
    raise ConfigError(
        f"{folder}: no tokenizer; put the model's tokenizer.json or sentencepiece model there."
    )


def read_plugin_tokenizer(folder: Path) -> plain.Tokenizer | None:
    """Reads a tokenizer by the plug-in of its model_type; None where there is none.

    Raises:
      ConfigError: it is missing or damaged.
    """
    config = _read(folder / "config.json")
    if is_static(folder):
        config = STATIC_CONFIG
    name = config.get("model_type")
    if name not in registry.available("tokenizers"):
        return None
    return registry.resolve("tokenizers", name).read_tokenizer(folder)


def _of_json(definition: str, where: Path, config: Json, template: str) -> PublishedTokenizer:
    folder = where.parent if where.is_file() else where
    try:
        check_steps(definition)
        definition = _rules_of(folder).apply(definition)
        inner = plain.HuggingFace(definition.encode())
    except ConfigError as error:
        raise ConfigError(f"{where}: cannot be read as a tokenizer: {error}") from None
    return PublishedTokenizer(inner, config, template)


def _rules_of(folder: Path) -> FolderRules:
    """Returns what a folder says beside its tokenizer; PublishedTokenizer cuts texts itself."""
    return dataclasses.replace(read_rules(folder), truncation_side=None)


def framed(
    inner: plain.Tokenizer, skeleton: str, template: str = "", *, as_published: bool = False
) -> PublishedTokenizer:
    """Wraps the tokenizer of a training run, to add special tokens as training does.

    Args:
      inner: the tokenizer.
      skeleton: the model's.
      template: of conversations.
      as_published: whether texts have the special tokens of tokenizer.json, as the rows of a table
        do; a decoder that continues a prompt would take those at its end for the end of the text.
    """
    roles = {plain.KNOWN[role][0]: i for role, i in inner.ids.items()}
    config = {"truncation_side": inner.truncation_side}
    around = plain.usual_frame(inner, skeleton)
    if skeleton == "decoder":
        around = special_tokens.Frame(inner.begin_ids)
    if as_published:
        around = inner.frame(skeleton)
    return PublishedTokenizer(
        inner, config, template, inner.spelled | roles, around.before, around.after
    )


def _read(path: Path) -> Json:
    if not path.exists():
        return {}
    return read_object(path, KINDS)


def _chat_template(folder: Path, config: Json) -> str:
    """Returns the template of a folder's files, or else of its config."""
    named: dict[object, object] = {}
    if (folder / TEMPLATE).is_file():
        named["default"] = read_text(folder / TEMPLATE, limit=LARGEST_TEMPLATE)
    for path in sorted((folder / chat_template.MORE_TEMPLATES).glob("*.jinja")):
        named[path.stem] = read_text(path, limit=LARGEST_TEMPLATE)
    if not named:
        template = config.get("chat_template") or ""
        if isinstance(template, str):
            return template
        named = template
        if isinstance(template, list):
            named = {}
            for entry in template:
                if isinstance(entry, dict):
                    named[entry.get("name")] = entry.get("template")
        if not isinstance(named, dict) or not named:
            named = {"": None}
        if not all(isinstance(text, str) for text in (*named, *named.values())):
            raise ConfigError(
                f"{folder}: chat_template={quote_value(template)}: must be a text, or a list of"
                " objects with name and template."
            )
    return chat_template.join_named(named)  # type: ignore[arg-type]  # checked above
