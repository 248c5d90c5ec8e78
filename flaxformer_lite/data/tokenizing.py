"""Tokenizes a text into files, in batches that the tokenizer's library spreads over all cores."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import token_files
from flaxformer_lite.data.source import Source
from flaxformer_lite.data.split import SPLITS, Document, Split
from flaxformer_lite.runtime import progress
from flaxformer_lite.text.tokenizer import Tokenizer

# characters encoded at a time; cut at the end of a line, so that pieces tokenize like the whole
PIECE = 1 << 16
BATCH = 1 << 21  # characters given to the library at once: a piece for each of 32 cores


class Piece(NamedTuple):
    """A part of a text."""

    split: str
    text: str
    is_first: bool  # whether the text begins with it
    is_last: bool  # whether the text ends with it


def pieces(dealt: Iterable[tuple[str, Document]]) -> Iterator[Piece]:
    """Cuts texts into parts of at most PIECE characters, at the end of a line if possible."""
    for name, document in dealt:
        for text in document:
            at = 0
            while at < len(text):
                end = at + PIECE
                if end < len(text):
                    end = text.rfind("\n", at, end) + 1 or end
                yield Piece(name, text[at:end], at == 0, end >= len(text))
                at = end


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Groups pieces to batches of at least BATCH characters, but for the last."""
    batch = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def write_tokens(
    folder: Path, source: Source, split: Split, chosen: Tokenizer, begin: Sequence[int] = ()
) -> None:
    """Writes train.bin and eval.bin (ids), train.offsets and eval.offsets (ends of documents).

    Args:
      folder: where the files are written.
      source: the text.
      split: how it is split.
      chosen: the tokenizer.
      begin: ids before each text; after each is the end-of-text id.

    Raises:
      ConfigError: the tokenizer fails on the text, or nothing is left for a split.
    """
    dtype = token_files.known_dtype(chosen)
    ends = dict.fromkeys(SPLITS, 0)
    with contextlib.ExitStack() as stack:
        ids = {}
        offsets = {}
        for name in SPLITS:
            ids[name] = stack.enter_context((folder / f"{name}.bin").open("wb"))
            offsets[name] = stack.enter_context((folder / f"{name}.offsets").open("wb"))
            offsets[name].write(np.int64(0).tobytes())
        advance = stack.enter_context(progress.read_progress("tokenizing", split.characters))
        for batch in _batches(pieces(split.deal(source.documents()))):
            rows = chosen.encode_batch([piece.text for piece in batch])
            for piece, row in zip(batch, rows, strict=True):
                if piece.is_first:
                    row = [*begin, *row]
                if piece.is_last:
                    row = [*row, chosen.eos_id]
                ids[piece.split].write(np.asarray(row, dtype).tobytes())
                ends[piece.split] += len(row)
                if piece.is_last:
                    offsets[piece.split].write(np.int64(ends[piece.split]).tobytes())
                advance(len(piece.text))
    for name, end in ends.items():
        if not end and split.fraction != {"train": 1, "eval": 0}[name]:
            raise ConfigError(f"{source.where}: no text left for the {name} split; give more text.")
