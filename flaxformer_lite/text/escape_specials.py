"""Encodes untrusted text: special-token spellings stay plain text.

Failures of the tokenizers library become errors.
"""

import contextlib
import json
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator

import tokenizers

from flaxformer_lite.config import ConfigError

FAILS = "tokenizer.json: fails on this text; shorten its longest words, or use another tokenizer"

_switch = threading.Lock()
_within = 0  # blocks of without_panics
_kept: int | None = None  # standard error meanwhile
NO_TEXT = (
    "a text is no str, or holds half of a surrogate pair (such as \\ud83d), as text does that was"
    " cut in UTF-16; text.encode(errors='replace').decode() puts question marks in their place."
)


def copy_literal(tokenizer: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, str]:
    """Copies a tokenizer for texts in which the spelling of a special token is text.

    The library's own switch (`encode_special_tokens`) leaves them to the model, which may know them
    as words: T5's does.

    Returns:
      The copy, and a mark that nobody can guess: special tokens are found between two of it, with
        their flags and ids.
    """
    read = json.loads(tokenizer.to_str())
    mark = secrets.token_hex(8)
    special = {token["content"] for token in read["added_tokens"] if token["special"]}
    # a single character may have no other spelling
    names = {name for name in special if len(name) > 1}
    model = read["model"]
    inside = model.get("continuing_subword_prefix") or ""

    def spell(token: str) -> str:
        if token not in names:
            return token
        return f"{mark}{token}{mark}"

    for token in read["added_tokens"]:
        normalized = token["normalized"] and not token["special"]
        token |= {"content": spell(token["content"]), "normalized": normalized}
    if "unk_token" in model:
        model["unk_token"] = spell(model["unk_token"])
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {spell(token): i for token, i in model["vocab"].items()}
    elif "vocab" in model:
        model["vocab"] = [[spell(token), score] for token, score in model["vocab"]]
    kept = []
    for pair in model.get("merges", ()):
        if isinstance(pair, str):
            pair = pair.split(" ")
        left, right = pair
        if names.isdisjoint({left, right, left + right.removeprefix(inside)}):
            kept.append([left, right])
    if "merges" in model:
        model["merges"] = kept
    return tokenizers.Tokenizer.from_str(json.dumps(read)), mark


@contextlib.contextmanager
def library_errors(message: str) -> Iterator[None]:
    """Turns what the library raises into a ConfigError.

    It raises plain exceptions, and panics, which are not even those.
    """
    try:
        yield
    except BaseException as error:
        # A pattern that takes too many steps raises PanicException, which cannot be imported.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ConfigError(f"{message} ({error}).") from None


@contextlib.contextmanager
def encoding_errors() -> Iterator[None]:
    """Turns what the libraries raise about a text into a ConfigError."""
    try:
        with library_errors(FAILS):
            yield
    except (TypeError, UnicodeEncodeError):
        raise ConfigError(NO_TEXT) from None


@contextlib.contextmanager
def without_panics() -> Iterator[None]:
    """Keeps what Rust prints when a library panics, before it raises, from standard error.

    It is printed by the process, not by Python, so that standard error is closed to all threads
    within the block, which must be short.
    """
    global _within, _kept
    with _switch:
        if not _within:
            with contextlib.suppress(OSError):  # there is none
                _kept = os.dup(2)
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), 2)
        _within += 1
    try:
        yield
    finally:
        with _switch:
            _within -= 1
            if not _within and _kept is not None:
                os.dup2(_kept, 2)
                os.close(_kept)
                _kept = None


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern that matches any of the names, the longest first; if none, nothing."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")


def split_at(names: re.Pattern[str], text: str, guard: str) -> Iterator[tuple[str, str]]:
    """Yields each text before a name, with the name; at last the text after all of them, with "".

    A name with `guard` after its first character is text, as the pattern does not match it; guards
    are left out.
    """
    at = 0
    for match in names.finditer(text):
        yield text[at : match.start()].replace(guard, ""), match[0]
        at = match.end()
    yield text[at:].replace(guard, ""), ""
