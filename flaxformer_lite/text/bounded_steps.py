"""Bounds on how long a tokenizer.json may make a text, as it comes with a stranger's weights.

A few nested replacements turn a letter into gigabytes.
"""

import json
from collections.abc import Iterator

import tokenizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json

MOST_GROWTH = 100  # characters that replacements make of one
MOST_ADDED = 1000  # characters of what is put before a text, or of a part of tokens' spelling
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix", "unk_token")
# Every character of ASCII, between which a pattern that matches nothing inserts.
PROBE = "".join(map(chr, range(128)))


def check_steps(definition: str) -> None:
    """Refuses a tokenizer.json whose steps make texts far longer than any published one does.

    Raises:
      ConfigError: they do, or it is no JSON.
    """
    try:
        read = json.loads(definition)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not JSON ({error}).") from None
    if not isinstance(read, dict):
        return  # the library says what it is not
    for part in ("normalizer", "decoder"):
        growth = 1.0
        for step in _steps(read.get(part)):
            growth *= _growth(step)
            added = step.get("prepend")
            if growth > MOST_GROWTH or _length(added) > MOST_ADDED:
                raise ConfigError(
                    f"its {part} makes a text longer by more than {MOST_GROWTH} times or"
                    f" {MOST_ADDED:,} characters; no published tokenizer does."
                )
    model = read.get("model")
    for name in AFFIXES:
        if isinstance(model, dict) and _length(model.get(name)) > MOST_ADDED:
            raise ConfigError(f"its {name} has more than {MOST_ADDED:,} characters.")


def _steps(step: object) -> Iterator[Json]:
    """Yields the single steps of a sequence, which may hold others."""
    if not isinstance(step, dict):
        return
    yield step
    for name in ("normalizers", "decoders"):
        inner = step.get(name)
        if isinstance(inner, list):
            for one in inner:
                yield from _steps(one)


def _growth(step: Json) -> float:
    """Returns how many characters a step makes of one at most."""
    content = step.get("content")
    pattern = step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(pattern, dict):
        return 1
    made = _length(content)
    if isinstance(pattern.get("String"), str):
        return max(1, made / max(1, len(pattern["String"])))
    try:
        regex = tokenizers.Regex(str(pattern.get("Regex")))
        probed = tokenizers.normalizers.Replace(regex, "x").normalize_str(PROBE)
    except Exception:  # no pattern, as the library says when it reads the file
        return 1
    if len(probed) > len(PROBE):  # it matches nothing, between two characters
        return 1 + made
    return max(1, made)


def _length(text: object) -> int:
    return len(text) if isinstance(text, str) else 0
