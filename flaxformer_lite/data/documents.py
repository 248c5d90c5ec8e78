"""Tokenizes the documents of a text into a store of the cache, with the file and line of each.

Pieces are tokenized in batches that the tokenizer's library spreads over all cores.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig, TokenizerConfig
from flaxformer_lite.data import store, store_writer, token_files
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.data.open_tokenizer import make_tokenizer, train_tokenizer
from flaxformer_lite.data.records import Corpus, Tokens
from flaxformer_lite.data.source import Source, open_text
from flaxformer_lite.data.split import SPLITS, Split, split_of
from flaxformer_lite.data.store_writer import StoreWriter
from flaxformer_lite.objectives.rows import Record, StoredColumn
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text.tokenizer import Tokenizer

FORMAT = "4"  # to increase if the split, the tokens or the training of a tokenizer change
STORED = "2"  # to increase if the columns of a text's store change
# characters encoded at a time; cut at the end of a line, so that pieces tokenize like the whole
PIECE_CHARACTERS = 1 << 16
BATCH_CHARACTERS = 1 << 21  # characters given to the library at once: a piece for each of 32 cores
COPIED_TOKENS = 1 << 22  # of token files, that are written at a time
MARKED_TOKENS = 64  # tokens; the line at every 64th token of a plain text is stored
# Of each document, beside its tokens.
COLUMNS = {
    "file": StoredColumn("int32", ()),
    # its line or row in the file, from 1; of token ids, the index of its first token
    "line": StoredColumn("int64", ()),
    # of plain text, the lines between the beginning of the text and every MARKED_TOKENS-th token
    "marks": StoredColumn("int32"),
    # whether they are known, or estimated, as the tokenizer does not keep newlines
    "is_exact": StoredColumn("bool", ()),
}


TEXT = ("ids",)  # the column of the tokens of a text
PAIR = ("source", "target")  # the columns of those of a pair
# of a text that is not plain
NO_LINES: Record = {"marks": np.zeros(0, np.int32), "is_exact": np.asarray(True)}


class Text(NamedTuple):
    """A text before it is tokenized."""

    source: Source
    split: Callable[[], Split]  # its first call reads the whole text
    share: float  # held-out share of the text
    key: str  # hash of text and split


def read_text(cfg: DataConfig, fields: tuple[str, ...], *, all_held_out: bool = False) -> Text:
    """Opens the text that a config names, without tokenizing it.

    Args:
      cfg, fields, all_held_out: as in `open_corpus`.

    Raises:
      ConfigError: the text cannot be used.
    """
    names = []
    for name in fields:
        if name == "text":
            name = cfg.text_field
        names.append(name)
    split_name = "train"
    share = cfg.held_out
    if all_held_out:
        split_name = "eval"
        share = 1
    source = open_text(cfg, tuple(names), split_name)
    if source.has_tokens:
        _check_tokens(cfg, source)
    key = digest_of([FORMAT, source.fingerprint, source.fields, share])

    @functools.cache
    def split() -> Split:
        def write(folder: Path) -> None:
            found = split_of(source.documents(), share, source.where)
            (folder / "split.json").write_text(json.dumps(dataclasses.asdict(found)))

        folder = content_cache.folder(cfg.cache, f"split-{key}", write)
        return Split(**json.loads((folder / "split.json").read_bytes()))

    return Text(source, split, share, key)


def shared_tokenizer(cfg: DataConfig, texts: Sequence[Text]) -> TokenizerConfig:
    """Returns the config of one tokenizer for all texts, which is trained if none is configured."""
    if cfg.tokenizer.path or cfg.tokenizer.name == "bytes":
        return cfg.tokenizer
    return TokenizerConfig(path=str(_train_tokenizer(cfg, texts)), add=cfg.tokenizer.add)


def open_corpus(
    cfg: DataConfig, fields: tuple[str, ...], *, skeleton: str = "", all_held_out: bool = False
) -> Corpus:
    """Reads, splits and tokenizes the texts that a config names, unless the cache has the result.

    Args:
      cfg: the data section of the experiment.
      fields: the texts that the objective reads from a document.
      skeleton: of the model; documents of a decoder begin with the tokenizer's `begin_ids`, where
        other models' objectives add special tokens to each piece themselves.
      all_held_out: whether to hold all of the text out.

    Raises:
      ConfigError: the text, the tokenizer or the cache cannot be used.
    """
    text = read_text(cfg, fields, all_held_out=all_held_out)
    if all_held_out or not cfg.eval_path:
        return _tokenized(cfg, text, _tokenizer(cfg, text), skeleton)
    eval_cfg = dataclasses.replace(cfg, path=cfg.eval_path, eval_path="")
    with _naming_eval_path():  # before the training text is tokenized, which may take hours
        eval_text = read_text(eval_cfg, fields, all_held_out=True)
    corpus = _tokenized(cfg, text, _tokenizer(cfg, text), skeleton)
    with _naming_eval_path():
        held = _tokenized(eval_cfg, eval_text, corpus.tokenizer, skeleton)
    key = digest_of([corpus.fingerprint, held.fingerprint])
    tokens = {**corpus.tokens, "eval": held.tokens["eval"]}
    return dataclasses.replace(corpus, tokens=tokens, fingerprint=key)


@contextlib.contextmanager
def _naming_eval_path() -> Iterator[None]:
    """Makes errors about the held-out text name data.eval_path instead of data.path."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(re.sub(r"\bdata\.path(?=[=:])", "data.eval_path", str(error))) from error


def _tokenized(cfg: DataConfig, text: Text, chosen: Tokenizer, skeleton: str) -> Corpus:
    source = text.source
    begin: tuple[int, ...] = ()
    if skeleton == "decoder" and not source.has_tokens:  # ids in files are taken as they are
        begin = chosen.begin_ids
    keys: list[object] = [text.key, chosen.fingerprint]
    if begin:  # without it the key equals older versions', whose runs go on
        keys.append(begin)
    key = digest_of(keys)
    name = f"store-{digest_of([store.FORMAT, STORED, key])}"

    def copy_tokens(writer: StoreWriter) -> None:
        runs = token_files.read_runs(source.files, chosen, text.share, source.where)
        write_runs(writer, runs)

    def tokenize(writer: StoreWriter, files: slice, share: float) -> None:
        split = text.split()
        with progress.read_progress("tokenizing", round(split.characters * share)) as advance:
            pieces = read_pieces(source, split, files)
            write_texts(writer, pieces, source, chosen, begin, advance)

    parts = []
    if source.has_tokens:
        parts.append(store_writer.Part("tokens", copy_tokens))
    else:
        for files in source.parts():
            share = sum(size for size, _ in source.stamps[files]) / source.size
            write = functools.partial(tokenize, files=files, share=share)
            parts.append(store_writer.Part(f"{files.start}-{files.stop}", write))
    sides = sides_of(source)
    columns = {**dict.fromkeys(sides, StoredColumn("token")), **COLUMNS}
    opened = store_writer.open_store(cfg.cache, name, columns, parts, chosen.vocab_size)
    tokens = {split: Tokens(opened, split, sides) for split in SPLITS}
    for split, share in (("train", 1 - text.share), ("eval", text.share)):
        if share and not tokens[split].num_tokens:
            raise ConfigError(
                f"{source.where}: no text left for the {split} split; give more text."
            )
    return Corpus(source, chosen, tokens, key)


def _check_tokens(cfg: DataConfig, source: Source) -> None:
    others = [path.name for path in source.files if not token_files.is_tokens(path)]
    if others:
        raise ConfigError(
            f"{source.where}: {others[0]} is text, and others hold token ids; give one or the"
            " other."
        )
    if len(source.fields) > 1:
        raise ConfigError(
            f"{source.where}: holds token ids, but this objective reads"
            f" {' and '.join(source.fields)}."
        )
    if not cfg.tokenizer.path and cfg.tokenizer.name != "bytes":
        raise ConfigError(
            f"{source.where}: holds token ids; set data.tokenizer.path to the tokenizer that wrote"
            " them."
        )


def _tokenizer(cfg: DataConfig, text: Text) -> Tokenizer:
    return make_tokenizer(cfg.tokenizer, lambda: _train_tokenizer(cfg, [text]))


def _train_tokenizer(cfg: DataConfig, texts: Sequence[Text]) -> Path:
    """Returns the folder of a tokenizer that is trained on the texts, unless it is cached."""

    def characters() -> int:
        return sum(text.split().characters for text in texts)

    def sample(every: int) -> Iterator[str]:
        number = itertools.count()
        what = f"training the {cfg.tokenizer.name} tokenizer"
        with progress.read_progress(what, characters()) as advance:
            for text in texts:
                for piece in read_pieces(text.source, text.split()):
                    advance(len(piece.text))
                    if piece.split == "train" and next(number) % every == 0:
                        yield piece.text

    keys: object = [text.key for text in texts]
    if len(texts) == 1:
        keys = texts[0].key  # not in a list, as in the caches of older versions
    return train_tokenizer(cfg, [keys], characters, sample)


class Piece(NamedTuple):
    """A part of a text.

    Attributes:
      split: "train" or "eval".
      side: the column of the tokens of the text.
      text: the characters.
      is_first: whether the text begins with it.
      is_last: whether the text ends with it.
      file: number of the file.
      line: the line or row where the text begins.
    """

    split: str
    side: str
    text: str
    is_first: bool
    is_last: bool
    file: int
    line: int


def sides_of(source: Source) -> tuple[str, ...]:
    """Returns the columns of the tokens of a text's documents."""
    return PAIR if len(source.fields) > 1 else TEXT


def read_pieces(source: Source, split: Split, files: slice = slice(None)) -> Iterator[Piece]:
    """Cuts texts into parts of at most PIECE_CHARACTERS, at the end of a line if possible."""
    sides = sides_of(source)
    for file, line, document in source.placed(files):
        for name, texts in split.deal([document]):
            for side, text in zip(sides, texts, strict=True):
                at = 0
                while at < len(text):
                    end = at + PIECE_CHARACTERS
                    if end < len(text):
                        end = text.rfind("\n", at, end) + 1 or end
                    yield Piece(name, side, text[at:end], at == 0, end >= len(text), file, line)
                    at = end
            if source.is_plain[file]:  # the rest of the document may be of the other split
                line += texts[0].count("\n")


def write_texts(
    writer: StoreWriter,
    pieces: Iterable[Piece],
    source: Source,
    chosen: Tokenizer,
    begin: Sequence[int],
    advance: Callable[[int], None],
) -> None:
    """Appends texts with their tokens and COLUMNS to a store.

    Args:
      writer: of the store, or of a part of it.
      pieces: of texts, as `read_pieces` yields them.
      source: where they are from.
      chosen: the tokenizer.
      begin: ids before each text; after each is the end-of-text id.
      advance: is called with the number of characters of each piece.
    """
    dtype = token_files.known_dtype(chosen)
    counter = _LineCounter(chosen)
    last_side = sides_of(source)[-1]
    held: list[np.ndarray] = []
    document: dict[str, np.ndarray] = {}
    for batch in _batches(pieces):
        made: dict[str, list[Record]] = {name: [] for name in SPLITS}
        encoded = chosen.encode_batch([piece.text for piece in batch])
        for piece, row in zip(batch, encoded, strict=True):
            if piece.is_first:
                row = [*begin, *row]
                held = []
                counter.start_text()
            if piece.is_last:
                row = [*row, chosen.eos_id]
            held.append(np.asarray(row, dtype))
            is_plain = source.is_plain[piece.file]
            if is_plain:
                counter.add(held[-1], piece.text)
            if piece.is_last:
                document[piece.side] = held[0] if len(held) == 1 else np.concatenate(held)
            if piece.is_last and piece.side == last_side:
                lines = counter.columns() if is_plain else NO_LINES
                made[piece.split].append(_make_record(document, piece.file, piece.line, lines))
                document = {}
            advance(len(piece.text))
        for name, records in made.items():
            writer.append(name, records)


def write_runs(writer: StoreWriter, runs: Iterable[token_files.Run]) -> None:
    """Appends documents of token ids with COLUMNS to a store."""
    made: dict[str, list[Record]] = {name: [] for name in SPLITS}
    size = 0
    first: int | None = None
    for run in runs:
        if first is None:
            first = run.token
        if run.is_last:
            made[run.split].append(_make_record({"ids": run.ids}, run.file, first, NO_LINES))
            first = None
        size += len(run.ids)
        if size > COPIED_TOKENS or not run.is_last:
            for name, records in made.items():
                writer.append(name, records)
                records.clear()
            size = 0
        if not run.is_last:
            writer.begin_entry(run.split, "ids", run.ids)
    for name, records in made.items():
        writer.append(name, records)


def _make_record(tokens: Record, file: int, line: int, lines: Record) -> Record:
    return {**tokens, "file": np.asarray(file), "line": np.asarray(line), **lines}


class _LineCounter:
    """Finds the lines at the tokens of a plain text, which is added in pieces."""

    def __init__(self, chosen: Tokenizer):
        texts = chosen.pieces()
        self._newlines = np.asarray([text.count(b"\n") for text in texts])
        self._sizes = np.asarray([len(text) for text in texts])
        self.start_text()

    def start_text(self) -> None:
        self._marks: list[np.ndarray] = []
        self._tokens = 0
        self._lines = 0
        self._is_exact = True

    def add(self, ids: np.ndarray, text: str) -> None:
        counts = self._newlines[ids]
        before = np.cumsum(counts) - counts
        newlines = text.count("\n")
        if counts.sum() != newlines:
            self._is_exact = False
            before = self._estimate(ids, text.encode())
        self._marks.append(self._lines + before[-self._tokens % MARKED_TOKENS :: MARKED_TOKENS])
        self._tokens += len(ids)
        self._lines += newlines

    def _estimate(self, ids: np.ndarray, text: bytes) -> np.ndarray:
        """Estimates the newlines before each token, by the bytes of the tokens before it."""
        sizes = self._sizes[ids]
        place = (np.cumsum(sizes) - sizes) * (len(text) / max(int(sizes.sum()), 1))
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        return np.searchsorted(newlines, place)

    def columns(self) -> Record:
        marks = np.concatenate(self._marks).astype(np.int32)
        return {"marks": marks, "is_exact": np.asarray(self._is_exact)}


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Groups pieces to batches of at least BATCH_CHARACTERS characters, but for the last."""
    batch = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch
