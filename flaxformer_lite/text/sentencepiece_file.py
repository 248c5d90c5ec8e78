"""The contents of a sentencepiece model's file, a protocol buffer that `sentencepiece` encodes with
but does not show: its pieces with their scores, and its table of normalization."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flaxformer_lite.files.read import read_bytes

# Kinds of piece, and of model, in sentencepiece_model.proto.
NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
UNIGRAM = 1
BPE = 2
LARGEST = 1 << 28  # bytes


@dataclass
class SentencePieceFile:
    """A sentencepiece model as it is stored.

    Attributes:
      pieces: text, score and kind of each, by id.
      model: UNIGRAM, BPE, or another.
      unk_id: the id of the unknown token.
      charsmap: the compiled table of normalization; empty for none.
    """

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    model: int = UNIGRAM
    unk_id: int = 0
    charsmap: bytes = b""


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Reads a sentencepiece model.

    Raises:
      ConfigError: there is no such file.
      ValueError, TypeError: it is damaged.
    """
    read = SentencePieceFile()
    for number, value in _fields(read_bytes(path, limit=LARGEST)):
        if number == 1:
            piece = dict(_fields(value))
            (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
            read.pieces.append((piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
        elif number == 2:
            trainer = dict(_fields(value))
            read.model = trainer.get(3, UNIGRAM)
            read.unk_id = trainer.get(40, 0)
        elif number == 3:
            read.charsmap = dict(_fields(value)).get(2, b"")
    if not read.pieces:
        raise ValueError("no pieces in it")
    return read


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the number and value of each field of a message: an int, or bytes."""
    at = 0
    while at < len(content):
        key, at = _number(content, at)
        kind = key & 7
        if kind == 0:
            value, at = _number(content, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _number(content, at)
        else:
            size = {1: 8, 5: 4}[kind]
        if at + size > len(content):
            raise ValueError("it is cut")
        yield key >> 3, content[at : at + size]
        at += size


def _number(content: bytes, at: int) -> tuple[int, int]:
    """Reads a number of variable length; returns it and the position after it."""
    number = 0
    shift = 0
    while content[at] >= 128:
        number |= (content[at] & 127) << shift
        shift += 7
        at += 1
    return number | content[at] << shift, at + 1
