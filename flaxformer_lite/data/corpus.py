"""Reads text that is tokenized and packed into rows, from memory-mapped files in a cache."""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    TokenizerConfig,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.data import token_files, tokenizing
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.data.open_tokenizer import make_tokenizer
from flaxformer_lite.data.source import Source, open_source
from flaxformer_lite.data.split import SPLITS, Split, split_of
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.row_plans import RowPlan, shift_of
from flaxformer_lite.objectives.rows import CountedRecords
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text import tokenizer_training
from flaxformer_lite.text.tokenizer import Tokenizer

FORMAT = "4"  # to increase if the files below, the split or the training of a tokenizer change
PACKED = 1 << 24  # tokens that are packed into rows at a time
PACKING_DTYPES = (np.int64, np.int32, np.int64, np.int64)


@dataclass(frozen=True)
class Tokens:
    """The documents of one split, one after another, memory-mapped."""

    # uint16 or uint32 [tokens]; each document ends with the end-of-text id.
    ids: np.ndarray
    # int64 [documents + 1], the start of each document, and the end of the last one.
    offsets: np.ndarray


@dataclass(frozen=True)
class Corpus:
    """A tokenized text."""

    source: Source
    tokenizer: Tokenizer
    tokens: dict[str, Tokens]  # by split
    fingerprint: str  # hash of text, split and tokenizer


@dataclass(frozen=True, eq=False)
class Records:
    """The rows from which an objective makes examples; a row is a list of pieces of documents.

    Attributes:
      tokenizer: the tokenizer of the text.
      length: T of the encoder or decoder-only model.
      target_length: T of the decoder of an encoder-decoder, else 0.
      ids: uint16 or uint32 [tokens], the tokens of the split.
      start: int64 [pieces], the index of the first token of each piece in `ids`.
      length_of: int32 [pieces], the number of tokens of each piece.
      document: int64 [pieces], the document that each piece is from.
      first: int64 [rows + 1]; row r has the pieces first[r] .. first[r + 1] - 1.
      trained_on: the tokens of the training split.
      source: the name of the source in a mixture, else "".
      mixture: the training records of all sources of the mixture, or None.
    """

    tokenizer: Tokenizer
    length: int
    target_length: int
    ids: np.ndarray
    start: np.ndarray
    length_of: np.ndarray
    document: np.ndarray
    first: np.ndarray
    trained_on: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint16))
    source: str = ""
    mixture: CountedRecords | None = None

    def __len__(self) -> int:
        return len(self.first) - 1

    def row(self, index: int) -> list[np.ndarray]:
        """Returns the pieces of a row, each int32."""
        return [self.piece(p) for p in range(int(self.first[index]), int(self.first[index + 1]))]

    def piece(self, number: int) -> np.ndarray:
        """Returns the tokens of a piece, int32."""
        start = int(self.start[number])
        return np.asarray(self.ids[start : start + int(self.length_of[number])], np.int32)

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of occurrences of each id in the training split, int64 [V].

        If that split is empty, the ids of these records are counted instead.
        """
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        ids = self.trained_on if len(self.trained_on) else self.ids
        for begin in range(0, len(ids), PACKED):
            counts += np.bincount(ids[begin : begin + PACKED], minlength=len(counts))
        return counts

    def other_piece(self, index: int, rng: np.random.Generator, tokens: int = 1) -> np.ndarray:
        """Draws a random piece from a document other than the one that row `index` starts with.

        Of sixteen random pieces of other documents, returns the first with `tokens` tokens or more,
        or else the longest. If all sixteen are from the same document, returns the piece half a
        split away.
        """
        first = int(self.first[index])
        drawn = rng.integers(len(self.start), size=16)
        others = drawn[self.document[drawn] != self.document[first]]
        if not len(others):
            return self.piece((first + len(self.start) // 2) % len(self.start))
        return self.piece(int(others[np.argmax(np.minimum(self.length_of[others], tokens))]))


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
    source = open_source(cfg, tuple(names), split_name)
    split = functools.cache(lambda: split_of(source.documents(), share, source.where))
    if source.has_tokens:
        _check_tokens(cfg, source)
    return Text(source, split, share, digest_of([FORMAT, source.fingerprint, source.fields, share]))


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
    if begin:  # without it the key equals older versions', whose caches are found
        keys.append(begin)
    key = digest_of(keys)

    def write(folder: Path) -> None:
        if source.has_tokens:
            token_files.copy(source.files, chosen, text.share, source.where, folder)
        else:
            tokenizing.write_tokens(folder, source, text.split(), chosen, begin)

    folder = content_cache.folder(cfg.cache, f"tokens-{key}", write)
    tokens = {}
    for name in SPLITS:
        ids = _mapped(folder / f"{name}.bin", token_files.known_dtype(chosen))
        offsets = _mapped(folder / f"{name}.offsets", np.int64)
        tokens[name] = Tokens(ids, offsets)
    return Corpus(source, chosen, tokens, key)


def open_records(
    cfg: DataConfig, corpus: Corpus, objective: Objective, split: str, packing: int = 0
) -> Records:
    """Packs a split for the objective, or reads the result from the cache.

    Args:
      cfg: the data section of the experiment.
      corpus: the tokenized text.
      objective: plans the rows.
      split: "train" or "eval".
      packing: the index of one of `objective.num_plans`; held-out text is packed by the first.

    Raises:
      ConfigError: the split does not fill one row.
    """
    length, target_length = objective.lengths(cfg.length, cfg.target_length)
    made_by = (
        plugin_name(objective),
        to_config_dict(objective).to_json(),
        *registry.code_of(type(objective)),
    )
    key = digest_of([corpus.fingerprint, *made_by, length, target_length])
    tokens = corpus.tokens[split]
    shifted = {}
    # An objective of one packing, such as a plug-in's, need not know of shifts.
    if objective.num_plans > 1:
        shifted["shift"] = shift_of(packing)

    def write(folder: Path) -> None:
        pieces = 0
        for begin, end in _ranges(tokens.offsets, len(corpus.source.fields)):
            offset = tokens.offsets[begin]
            ends = tokens.offsets[begin : end + 1] - offset
            plan = objective.plan_rows(ends, length, target_length, corpus.tokenizer, **shifted)
            first = plan.first + pieces
            if begin:
                first = first[1:]  # already written, as the end of the rows before
            part = RowPlan(plan.start + offset, plan.length, plan.document + begin, first)
            pieces += len(plan.start)
            for name, array, dtype in zip(RowPlan._fields, part, PACKING_DTYPES, strict=True):
                with (folder / name).open("ab") as file:
                    np.asarray(array, dtype).tofile(file)

    if split == "train" and len(tokens.ids) < length:
        raise ConfigError(
            f"{corpus.source.where}: {len(tokens.ids)} tokens to train on, less than one row of"
            f" data.length={length}; give more text or lower data.length."
        )
    suffix = ""
    if packing:
        suffix = f"-{packing}"
    folder = content_cache.folder(cfg.cache, f"rows-{key}-{split}{suffix}", write)
    # Checked before the arrays are mapped, as an empty file cannot be.
    if not (folder / "start").stat().st_size:
        where = corpus.source.where
        if split == "eval" and cfg.eval_path:
            where = f"data.eval_path={cfg.eval_path!r}"
        raise ConfigError(
            f"{where}: no document of the {split} split is long enough for"
            f" {plugin_name(objective)}; give more text."
        )
    arrays = []
    for name, dtype in zip(RowPlan._fields, PACKING_DTYPES, strict=True):
        arrays.append(np.memmap(folder / name, dtype, "r"))
    plan = RowPlan(*arrays)
    return Records(
        corpus.tokenizer, length, target_length, tokens.ids, *plan, corpus.tokens["train"].ids
    )


def _ranges(offsets: np.ndarray, texts: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of texts with about PACKED tokens; `texts` of a document stay together."""
    begin = 0
    count = len(offsets) - 1
    while begin < count:
        end = int(np.searchsorted(offsets, offsets[begin] + PACKED, side="right")) - 1
        end = max(end - (end - begin) % texts, begin + texts)
        yield begin, end
        begin = end


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

    def write(folder: Path) -> None:
        characters = sum(text.split().characters for text in texts)
        every = max(1, math.ceil(characters / tokenizer_training.MOST[cfg.tokenizer.name]))
        name = cfg.tokenizer.name
        with progress.read_progress(f"training the {name} tokenizer", characters) as advance:
            trained = tokenizer_training.train(cfg.tokenizer, _training_text(texts, every, advance))
            trained.save(folder)

    keys: str | list[str] = [text.key for text in texts]
    if len(texts) == 1:
        keys = texts[0].key  # not in a list, as in the caches of older versions
    digest = digest_of([keys, *cfg.tokenizer.training])
    return content_cache.folder(cfg.cache, f"tokenizer-{digest}", write)


def _training_text(
    texts: Sequence[Text], every: int, advance: Callable[[int], None]
) -> Iterator[str]:
    """Yields every `every`-th piece of the training splits."""
    number = itertools.count()
    for text in texts:
        for piece in tokenizing.pieces(text.split().deal(text.source.documents())):
            advance(len(piece.text))
            if piece.split == "train" and next(number) % every == 0:
                yield piece.text


def _mapped(path: Path, dtype: type) -> np.ndarray:
    """Maps a file into memory; an empty file, which cannot be mapped, gives an empty array."""
    if not path.stat().st_size:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r")
