"""Text that is tokenized once into memory-mapped files, and the rows that examples are made from."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, DataConfig, plugin_name, to_config_dict
from flaxformer_lite.data import cache, progress, tokenizer, tokenizer_training
from flaxformer_lite.data.split import SPLITS, Split, split_of
from flaxformer_lite.data.text import Source, open_source
from flaxformer_lite.data.tokenizer import Tokenizer

FORMAT = "2"  # increase when the files below, the split or the training of a tokenizer change
PIECE = 1 << 16  # characters encoded at a time; cut at the end of a line, so that pieces tokenize like the whole
BATCH = 1 << 22  # characters encoded in parallel
TOKENIZER_TEXT = 1 << 26  # characters a tokenizer is trained on, at most


@dataclass(frozen=True)
class Tokens:
    """The documents of one split, one after another.

    Attributes:
      ids: [tokens] uint16 or uint32, memory-mapped; each document ends with the end-of-text id.
      offsets: [documents + 1] int64, the start of each document, and the end of the last.
      numbers: field -> [documents] int64 or float64, the numbers of each document.
    """

    ids: np.ndarray
    offsets: np.ndarray
    numbers: dict[str, np.ndarray]


@dataclass(frozen=True)
class Corpus:
    """A tokenized text.

    Attributes:
      source: the source of the text.
      tokenizer: the tokenizer.
      tokens: split -> Tokens.
      fingerprint: hash of text, split and tokenizer.
    """

    source: Source
    tokenizer: Tokenizer
    tokens: dict[str, Tokens]
    fingerprint: str

    @property
    def where(self) -> str:
        """The field and value that errors name."""
        return self.source.where


@dataclass(frozen=True)
class Records:
    """The rows that an objective makes examples from; each row is a list of pieces of documents.

    Attributes:
      tokenizer: gives the special ids.
      length, target_length: T of the encoder or decoder-only model; T of an encoder-decoder's decoder, else 0.
      ids: the tokens of a split.
      start, length_of, document: [pieces], the start of each piece, its number of tokens, and its document.
      first: [rows + 1]; row r holds the pieces first[r] .. first[r + 1] - 1.
      numbers: field -> [documents] int64 or float64; if a document has several texts, each has an entry.
    """

    tokenizer: Tokenizer
    length: int
    target_length: int
    ids: np.ndarray
    start: np.ndarray
    length_of: np.ndarray
    document: np.ndarray
    first: np.ndarray
    numbers: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.first) - 1

    def row(self, index: int) -> list[np.ndarray]:
        """Returns the pieces of a row, each int32."""
        return [self.piece(p) for p in range(int(self.first[index]), int(self.first[index + 1]))]

    def piece(self, number: int) -> np.ndarray:
        start = int(self.start[number])
        return np.asarray(self.ids[start : start + int(self.length_of[number])], np.int32)

    def number(self, index: int, name: str) -> Any:
        """Returns the number `name` of a row's first document, as a numpy scalar."""
        return self.numbers[name][self.document[self.first[index]]]

    def other_piece(self, index: int, rng: np.random.Generator, tokens: int = 1) -> np.ndarray:
        """Draws a random piece from another document than row `index` starts with, or from the only one.

        It has at least `tokens` tokens, or else is the longest of sixteen draws.
        """
        own = int(self.first[index])
        drawn = rng.integers(len(self.start), size=16)
        others = drawn[self.document[drawn] != self.document[own]]
        if not len(others):
            return self.piece((own + len(self.start) // 2) % len(self.start))
        return self.piece(int(others[np.argmax(np.minimum(self.length_of[others], tokens))]))


def open_corpus(cfg: DataConfig, fields: tuple[str, ...], numbers: tuple[str, ...] = ()) -> Corpus:
    """Reads, splits and tokenizes the text that a config names, or finds the result in the cache.

    Args:
      cfg: the data section of the experiment.
      fields: texts that the objective reads from a document.
      numbers: numbers that it reads from a document.

    Raises:
      ConfigError: the text, the tokenizer or the cache cannot be used.
    """
    source = open_source(cfg, tuple(cfg.text_field if field == "text" else field for field in fields), numbers)
    text = _hash(FORMAT, source.fingerprint, source.fields, cfg.eval_fraction, *[numbers] * bool(numbers))
    chosen = _tokenizer(cfg, source, text)
    key = _hash(text, chosen.fingerprint)
    folder = cache.folder(cfg.cache, f"tokens-{key}", lambda at: _tokenize(source, cfg.eval_fraction, chosen, at))
    dtype = _dtype(chosen)
    tokens = {
        split: Tokens(
            np.memmap(folder / f"{split}.bin", dtype, "r"),
            np.load(folder / f"{split}.npy"),
            {name: np.load(folder / f"{split}-{i}.npy") for i, name in enumerate(numbers)},
        )
        for split in SPLITS
    }
    return Corpus(source, chosen, tokens, key)


def open_records(cfg: DataConfig, corpus: Corpus, objective: Any, split: str) -> Records:
    """Packs a split for the objective, or finds the result in the cache.

    Raises:
      ConfigError: the split does not fill one row.
    """
    length, target_length = objective.lengths(cfg.length, cfg.target_length)
    made_by = plugin_name(objective), to_config_dict(objective).to_json(), *registry.code_of(type(objective))
    key = _hash(corpus.fingerprint, *made_by, length, target_length)
    tokens = corpus.tokens[split]

    def write(folder: Path) -> None:
        packing = objective.pack(tokens.offsets, length, target_length, corpus.tokenizer)
        for name, array in packing._asdict().items():
            np.save(folder / f"{name}.npy", array)

    if split == "train" and len(tokens.ids) < length:
        raise ConfigError(
            f"{corpus.where}: {len(tokens.ids)} tokens to train on, less than one row of data.length="
            f"{length}; give more text or lower data.length."
        )
    folder = cache.folder(cfg.cache, f"rows-{key}-{split}", write)
    start, length_of, document, first = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("start", "length", "document", "first")
    )
    if len(first) < 2:
        raise ConfigError(
            f"{corpus.where}: no document of the {split} split is long enough for"
            f" {plugin_name(objective)}; give more text."
        )
    rows = start, length_of, document, first
    return Records(corpus.tokenizer, length, target_length, tokens.ids, *rows, tokens.numbers)


def _tokenizer(cfg: DataConfig, source: Source, text: str) -> Tokenizer:
    if cfg.tokenizer.path:
        return tokenizer.load(cfg.tokenizer.path)
    if cfg.tokenizer.name == "bytes":
        return tokenizer.Bytes()

    def write(folder: Path) -> None:
        split = split_of(source.documents(), cfg.eval_fraction, source.where, whole=bool(source.numbers))
        with progress.reading(f"training the {cfg.tokenizer.name} tokenizer", source.size) as advance:
            tokenizer_training.train(cfg.tokenizer, _training_text(source, split, advance)).save(folder)

    name = f"tokenizer-{_hash(text, cfg.tokenizer.name, cfg.tokenizer.vocab_size)}"
    return tokenizer.load(cache.folder(cfg.cache, name, write))


def _training_text(source: Source, split: Split, advance) -> Iterator[str]:
    """Yields every n-th piece of the training split, with n chosen to stay within TOKENIZER_TEXT."""
    every, number = max(1, math.ceil(source.size / TOKENIZER_TEXT)), 0
    for name, document in split.deal(source.documents()):
        advance(sum(map(len, document)))
        if name == "train":
            for piece in (piece for text in document for piece in _pieces(text)):
                if number % every == 0:
                    yield piece
                number += 1


def _tokenize(source: Source, fraction: float, chosen: Tokenizer, folder: Path) -> None:
    """Writes train.bin and eval.bin (ids), train.npy and eval.npy (offsets), train-0.npy and so on (numbers)."""
    split = split_of(source.documents(), fraction, source.where, whole=bool(source.numbers))
    lengths: dict[str, list[int]] = {name: [] for name in SPLITS}
    with progress.reading("tokenizing", source.size) as advance:
        files = {name: (folder / f"{name}.bin").open("wb") for name in SPLITS}
        try:
            open_length = 0
            for pieces in _batches(split.deal(source.documents())):
                encoded = chosen.encode_batch([piece for _, piece, _ in pieces])
                for (name, _, last), ids in zip(pieces, encoded, strict=True):
                    ids = [*ids, chosen.eos_id] if last else ids
                    files[name].write(np.asarray(ids, _dtype(chosen)).tobytes())
                    open_length += len(ids)
                    if last:
                        lengths[name].append(open_length)
                        open_length = 0
                advance(sum(len(piece) for _, piece, _ in pieces))
        finally:
            for file in files.values():
                file.close()
    for name in SPLITS:
        if not lengths[name]:
            raise ConfigError(f"{source.where}: no text left for the {name} split; give more text.")
        np.save(folder / f"{name}.npy", np.concatenate([[0], np.cumsum(lengths[name], dtype=np.int64)]))
    if source.numbers:
        _write_numbers(source, split, folder)


def _write_numbers(source: Source, split: Split, folder: Path) -> None:
    """Writes one array per field and split: one number per text, in the order of the texts."""
    found: dict[str, list[tuple]] = {name: [] for name in SPLITS}
    for texts, numbers in source.records():
        found[split.side(texts)] += [numbers] * len(texts)
    for name, rows in found.items():
        for i, column in enumerate(zip(*rows, strict=True)):
            np.save(folder / f"{name}-{i}.npy", np.asarray(column))


def _batches(dealt) -> Iterator[list[tuple[str, str, bool]]]:
    """Yields batches of about BATCH characters, as (split, piece, whether it ends its text)."""
    batch, size = [], 0
    for name, document in dealt:
        for text in document:
            left = len(text)
            for piece in _pieces(text):
                left -= len(piece)
                batch.append((name, piece, not left))
                size += len(piece)
                if size >= BATCH:
                    yield batch
                    batch, size = [], 0
    if batch:
        yield batch


def _pieces(text: str) -> Iterator[str]:
    """Cuts a text into parts of at most PIECE characters, at the end of a line if possible."""
    at = 0
    while at < len(text):
        end = at + PIECE
        if end < len(text):
            end = text.rfind("\n", at, end) + 1 or end
        yield text[at:end]
        at = end


def _dtype(chosen: Tokenizer) -> type:
    return np.uint16 if chosen.vocab_size <= 1 << 16 else np.uint32


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
