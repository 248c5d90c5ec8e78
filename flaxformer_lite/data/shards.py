"""Shards of a text.

Where a shard begins depends on the text alone, so that any number of threads makes the same ones.
"""

import contextlib
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.split import SPLITS, Document
from flaxformer_lite.text.tokenizer import Tokenizer

# characters encoded at a time; cut at the end of a line, so that pieces tokenize like the whole
PIECE = 1 << 16
BATCH = 1 << 20  # characters given to the tokenizer at once
SHARD = 1 << 23  # characters of a shard


class Piece(NamedTuple):
    """A part of a text."""

    split: str
    text: str
    is_first: bool  # whether the text begins with it
    is_last: bool  # whether the text ends with it


# for each split its ids, "train.bin", and the ends of its documents, "train.offsets"
Arrays = dict[str, np.ndarray]


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


def grouped(pieces: Iterable[Piece], least: int) -> Iterator[list[Piece]]:
    """Groups pieces so that each group but the last has at least `least` characters."""
    group = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text)
        if size >= least:
            yield group
            group = []
            size = 0
    if group:
        yield group


def encode(
    shard: Iterable[Piece], chosen: Tokenizer, dtype: type, begin: Sequence[int] = ()
) -> Arrays:
    """Encodes a shard; each text starts with the ids `begin`, and ends with the end-of-text id.

    Offsets count from the beginning of the shard.
    """
    ids: dict[str, list[np.ndarray]] = {name: [np.zeros(0, dtype)] for name in SPLITS}
    ends: dict[str, list[int]] = {name: [] for name in SPLITS}
    size = dict.fromkeys(SPLITS, 0)
    for batch in grouped(shard, BATCH):
        rows = chosen.encode_batch([piece.text for piece in batch])
        for piece, row in zip(batch, rows, strict=True):
            name = piece.split
            if piece.is_first:
                row = [*begin, *row]
            if piece.is_last:
                row = [*row, chosen.eos_id]
            ids[name].append(np.asarray(row, dtype))
            size[name] += len(row)
            if piece.is_last:
                ends[name].append(size[name])
    arrays = {}
    for name in SPLITS:
        arrays[f"{name}.bin"] = np.concatenate(ids[name])
        arrays[f"{name}.offsets"] = np.asarray(ends[name], np.int64)
    return arrays


def save(path: Path, arrays: Arrays) -> None:
    """Writes a shard atomically."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            # A zip file, whose checksums `is_valid` relies on.
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its last option is a bool
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> Arrays:
    """Reads a shard and verifies its checksums.

    Raises:
      ConfigError: it is damaged; the file is deleted.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (zipfile.BadZipFile, ValueError, EOFError):
        path.unlink()
        raise ConfigError(
            f"{path}: was damaged, and is deleted; the same command makes it anew."
        ) from None


def is_valid(path: Path) -> bool:
    """Returns whether the shard exists and its checksums match."""
    with contextlib.suppress(OSError, zipfile.BadZipFile, EOFError), zipfile.ZipFile(path) as shard:
        return shard.testzip() is None
    return False
