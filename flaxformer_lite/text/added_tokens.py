"""Tokens that a folder adds to the vocabulary of its tokenizer, in files beside it.

They are those of `added_tokens_decoder` in tokenizer_config.json or else of added_tokens.json,
tokens with a role, and lists of further special tokens. As in transformers, one that the vocabulary
lacks gets the next free id, whatever id the files state.
"""

import json
import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, quote_value, read_object

LOG = logging.getLogger("flaxformer_lite")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # the order in which they are added
LISTS = ("extra_special_tokens", "additional_special_tokens")  # the first that is not empty counts
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Added(NamedTuple):
    """A token that a folder names.

    Attributes:
      token: its spelling and how it is found in texts.
      stated: the id that the folder states; None where it states none.
      replaces: whether its flags replace those of a token that the tokenizer's own file adds.
    """

    token: AddedToken
    stated: int | None = None
    replaces: bool = False


def read_added(
    folder: Path,
    config: Json,
    strips: Mapping[str, Sequence[str]] = MappingProxyType({}),
    others: Sequence[str] = (),
) -> list[Added]:
    """Lists the tokens that a folder names, in the order in which they are added.

    Args:
      folder: a directory.
      config: of tokenizer_config.json and special_tokens_map.json, and roles that a class names.
      strips: for a role, `lstrip` and `rstrip` where the folder does not say.
      others: further special tokens of the class.

    Raises:
      ConfigError: a field has another type than it can have.
    """
    special = _special_tokens(config, strips, others)
    decoder = config.get("added_tokens_decoder")
    names = {content_of(token) for token in special}
    added = []
    if decoder is not None:
        for index, token in _numbered(decoder):
            is_special = bool(token.get("special")) or content_of(token) in names
            added.append(Added(_added_token(token, special=is_special), index, replaces=True))
    else:
        numbers = read_optional(folder / "added_tokens.json")
        if not all(type(index) is int for index in numbers.values()):
            raise ConfigError(f"{folder / 'added_tokens.json'}: must hold the id of each token.")
        for name, index in sorted(numbers.items(), key=operator.itemgetter(1)):
            if not name:
                continue
            added.append(Added(_added_token({"content": name}, special=name in names), index))
    added += [Added(_added_token(token, special=True)) for token in special]
    return added


def add_missing(definition: str, added: Iterable[Added], where: Path) -> str:
    """Returns a tokenizer.json with the tokens that it lacks; unchanged where there are none.

    Args:
      definition: the text of a tokenizer.json.
      added: of the folder.
      where: the folder, for messages.
    """
    known = {}
    for token in json.loads(definition).get("added_tokens") or ():
        known[token["content"]] = [bool(token.get(flag)) for flag in FLAGS]
    missing = []
    for each in added:
        flags = [getattr(each.token, flag) for flag in FLAGS]
        name = each.token.content
        if name not in known or (each.replaces and known[name] != flags):
            missing.append(each.token)
            known[name] = flags
    if not missing:
        return definition
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.add_tokens(missing)
    tell_other_ids(tokenizer, added, where)
    return tokenizer.to_str()


def tell_other_ids(tokenizer: Tokenizer, added: Iterable[Added], where: Path) -> None:
    """Says which ids of a folder's files are not followed."""
    for token, index, _ in added:
        known = tokenizer.token_to_id(token.content)
        if index is not None and known != index:
            LOG.warning(
                "%s: %r is said to have the id %d, and has %s: ids follow the vocabulary, as in"
                " transformers.",
                where,
                token.content,
                index,
                known,
            )


def listed_tokens(config: Json) -> list[object]:
    """Returns the special tokens that a config lists beside those with a role."""
    for name in LISTS:
        listed = config.get(name)
        if isinstance(listed, dict):  # by a name of the model's own, such as image_token
            listed = list(listed.values())
        if listed is not None and not isinstance(listed, list):
            raise ConfigError(
                f"tokenizer_config.json: {name}={quote_value(listed)}: must be a list of tokens, or"
                " an object of them."
            )
        if listed:
            return listed
    return []


def content_of(token: object) -> str | None:
    """Returns the spelling of a token, which is a text or an object; None for anything else."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def read_optional(path: Path) -> Json:
    """Reads a JSON object; {} if there is no file."""
    if not path.is_file():
        return {}
    return read_object(path)


def _special_tokens(
    config: Json, strips: Mapping[str, Sequence[str]], others: Sequence[str]
) -> list[Json]:
    """Returns those with a role, with a name of the model's own, and of the lists, as objects."""
    named = []
    for role in ROLES:
        token = config.get(f"{role}_token")
        if isinstance(token, str):
            token = {"content": token, **dict.fromkeys(strips.get(role, ()), True)}
        named.append(token)
    for key, token in config.items():
        if key.endswith("_token") and key.removesuffix("_token") not in ROLES:
            named.append(token)
    tokens = []
    for token in (*named, *others, *listed_tokens(config)):
        content = content_of(token)
        if content:
            tokens.append(token if isinstance(token, dict) else {"content": content})
    return tokens


def _numbered(decoder: object) -> list[tuple[int, Json]]:
    """Returns the tokens of an added_tokens_decoder with their ids, by id."""
    numbered = []
    try:
        for index, token in dict(decoder).items():  # type: ignore[call-overload]  # of a file
            if content_of(token) is None or not isinstance(token, dict):
                raise ValueError(token)
            if token["content"]:  # nothing is found by an empty spelling
                numbered.append((int(index), token))
    except (TypeError, ValueError):
        raise ConfigError(
            "tokenizer_config.json: added_tokens_decoder must be an object of tokens by id."
        ) from None
    return sorted(numbered, key=operator.itemgetter(0))


def _added_token(token: Json, *, special: bool) -> AddedToken:
    flags = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word")}
    normalized = bool(token.get("normalized", not special))
    return AddedToken(content_of(token) or "", special=special, normalized=normalized, **flags)
