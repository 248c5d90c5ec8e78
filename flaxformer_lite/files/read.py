"""Bounded reading of untrusted files.

Only regular files of limited size are read, and their JSON is limited in depth and numbers.
"""

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from flaxformer_lite.config import ConfigError

# bytes of a JSON file; the largest index of published shards has less than a tenth
MAX_JSON_BYTES = 1 << 26
STREAM = "is no regular file, and is read more than once; write its content to a file."
MAX_NESTING = 100  # objects and lists within each other
MAX_INTEGER_DIGITS = 39  # of an integer; tokenizer_config.json spells "no limit" as 10**30
KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    dict: "an object",
    list: "a list",
}
Kind = type | tuple[type, ...]
Json = dict[str, Any]  # an object of a JSON file, such as config.json
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LONGEST_NAME = 120  # most characters of a name from a file in a message


def open_regular(path: Path, *, error: type[Exception] = ConfigError) -> BinaryIO:
    """Opens a regular file; a device or pipe is refused without waiting for it.

    Raises:
      error: the file is of another kind, or cannot be read.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        raise error(f"{path}: cannot be read ({getattr(failure, 'strerror', failure)}).") from None
    # Of what was opened, as the path may name something else by now.
    if stat.S_ISREG(os.fstat(number).st_mode):
        return os.fdopen(number, "rb")
    os.close(number)
    raise error(f"{path}: not a regular file; put the file itself there.")


def read_bytes(
    path: Path, *, limit: int = MAX_JSON_BYTES, error: type[Exception] = ConfigError
) -> bytes:
    """Reads a regular file of at most `limit` bytes."""
    with open_regular(path, error=error) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise error(
                f"{path}: {size:,} bytes, where {limit:,} are the most; is it the right file?"
            )
        # No more than was counted, as the file may grow meanwhile.
        return file.read(size)


def read_text(
    path: Path, *, limit: int = MAX_JSON_BYTES, error: type[Exception] = ConfigError
) -> str:
    """Reads UTF-8 text like `read_bytes`."""
    try:
        return read_bytes(path, limit=limit, error=error).decode()
    except UnicodeDecodeError as failure:
        raise error(f"{path} is not UTF-8 at byte {failure.start}; fetch it again.") from None


def read_object(
    path: Path, kinds: Mapping[str, Kind] | None = None, *, error: type[Exception] = ConfigError
) -> dict:
    """Reads a JSON object.

    Args:
      path: path of the file.
      kinds: types that fields must have, for those that are present and not null.
      error: type of the exception.

    Raises:
      error: the file cannot be read, is not an object, exceeds a bound, or a field has another
        type.
    """
    return parse_object(read_bytes(path, error=error), str(path), kinds, error=error)


def parse_object(
    text: bytes,
    where: str,
    kinds: Mapping[str, Kind] | None = None,
    *,
    error: type[Exception] = ConfigError,
) -> Json:
    """Parses a JSON object from `where`.

    Raises:
      error: it is none, holds a key twice with different values, a number of too many digits, is
        nested too deeply, or a field has another type than in `kinds`.
    """
    try:
        values = json.loads(text.decode(), object_pairs_hook=_unique, parse_int=_integer)
        _check_depth(values)
    except (ValueError, RecursionError) as failure:
        why = str(failure)
        if isinstance(failure, RecursionError):
            why = "nested too deeply"
        raise error(f"{where} is not JSON ({why}); fetch it again.") from None
    if not isinstance(values, dict):
        raise error(f"{where}: must be a JSON object.")
    for name, kind in (kinds or {}).items():
        value = values.get(name)
        if value is not None and not is_kind(value, kind):
            raise error(f"{where}: {name}={quote_value(value)}: must be {name_kind(kind)}.")
    return values


def is_kind(value: object, kind: Kind) -> bool:
    """Returns whether a JSON value is of a type, or of one of several.

    An integer counts as a number, true does not.
    """
    if isinstance(kind, tuple):
        return any(is_kind(value, one) for one in kind)
    if kind is float:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def name_kind(kind: Kind) -> str:
    """Returns the name of a type for a message."""
    if isinstance(kind, tuple):
        return " or ".join(map(name_kind, kind))
    return KINDS[kind]


def escape_controls(text: str) -> str:
    """Escapes what a terminal obeys in untrusted text.

    That is control characters but line ends and tabs, and those that change the direction of
    writing.
    """
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def escape_unprintable(text: str) -> str:
    """Escapes all that a line of text does not print."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def quote_name(name: str) -> str:
    """Returns a name from a file for a message, escaped and truncated if necessary."""
    if name.isprintable() and len(name) <= LONGEST_NAME:
        return name
    return quote_value(name)


def quote_value(value: object) -> str:
    """Returns a value from a file for a message: escaped, and cut if it is long."""
    text = repr(value)
    if len(text) > LONGEST_NAME:
        return f"{text[:LONGEST_NAME]}..."
    return text


def _unique(pairs: list[tuple[str, object]]) -> Json:
    entries: Json = {}
    for key, value in pairs:
        if key in entries and entries[key] != value:
            raise ValueError(f"it names {quote_name(key)} twice, with different values")
        entries[key] = value
    return entries


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _check_depth(values: object) -> None:
    # Level by level, as a recursion over untrusted nesting could itself end in an overflow.
    level = [values]
    depth = 0
    while level := [x for x in level if isinstance(x, (dict, list))]:
        depth += 1
        if depth > MAX_NESTING:
            raise ValueError(f"nested more than {MAX_NESTING} deep")
        below: list[object] = []
        for x in level:
            below += x.values() if isinstance(x, dict) else x
        level = below
