"""Reads CoNLL files: one word and its columns per line, a blank line after each sentence."""

import itertools
from collections.abc import Iterable, Iterator

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json

# Columns of CoNLL-U, https://universaldependencies.org/format.html
UNIVERSAL = ("id", "tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"


def read_conll(lines: Iterable[str], where: str, *, universal: bool = False) -> Iterator[Json]:
    """Yields one row per sentence, with a list of values per column.

    The columns are `tokens`, the first column of the file, and `tags`, the last one.

    Args:
      lines: the lines of the file.
      where: the field and value to name in errors.
      universal: whether the file is CoNLL-U; the columns then have the names of UNIVERSAL, and
        lines of contractions, empty nodes and comments are left out.

    Raises:
      ConfigError: a line has another number of columns than the first one.
    """
    sentence: list[list[str]] = []
    width = 0
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        line = line.rstrip("\r\n")
        values = line.split()
        if "\t" in line:  # a column may then contain spaces
            values = line.split("\t")
        if not any(values):
            if sentence:
                yield dict(_columns(sentence, universal))
            sentence = []
        elif values[0] != DOCUMENT and not (universal and _is_left_out(values[0])):
            width = width or len(values)
            if len(values) != width or (universal and width != len(UNIVERSAL)):
                expected = width
                if universal:
                    expected = len(UNIVERSAL)
                raise ConfigError(
                    f"{where}:{number}: {len(values)} columns; each word must have {expected}."
                )
            sentence.append(values)


def _is_left_out(first: str) -> bool:
    return first.startswith("#") or not first.isdecimal()


def _columns(sentence: list[list[str]], universal: bool) -> Iterator[tuple[str, list[str]]]:
    columns = [list(values) for values in zip(*sentence, strict=True)]
    if universal:
        columns_by_name = zip(UNIVERSAL, columns, strict=True)
        yield from list(columns_by_name)[1:]
        return
    yield "tokens", columns[0]
    if len(columns) > 1:
        yield "tags", columns[-1]
