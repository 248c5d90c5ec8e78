"""Tokenizes a text into a store of the cache, and plans its rows."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    TokenizerConfig,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.data import store, token_files, tokenizing
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.data.open_tokenizer import make_tokenizer
from flaxformer_lite.data.order import endless_finder
from flaxformer_lite.data.source import Source, open_source
from flaxformer_lite.data.split import SPLITS, Split, split_of
from flaxformer_lite.data.text_records import Records, Tokens
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.row_plans import shift_of
from flaxformer_lite.objectives.rows import CountedRecords, StoredColumn
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text import tokenizer_training
from flaxformer_lite.text.tokenizer import Tokenizer

FORMAT = "4"  # to increase if the split, the tokens or the training of a tokenizer change
STORED = "1"  # to increase if the columns of a text's store change
PLANNED_TOKENS = 1 << 24  # that are planned into rows at a time
# Of each row of a plan, the pieces: the first token of each in the split, its tokens and its text.
PLAN = {
    "start": StoredColumn("int64"),
    "length": StoredColumn("int32", like="start"),
    "document": StoredColumn("int64", like="start"),
}


@dataclass(frozen=True)
class Corpus:
    """A tokenized text."""

    source: Source
    tokenizer: Tokenizer
    tokens: dict[str, Tokens]  # by split
    fingerprint: str  # hash of text, split and tokenizer
    folder: Path  # of the store


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

    def copy_tokens(writer: store.StoreWriter) -> None:
        runs = token_files.read_runs(source.files, chosen, text.share, source.where)
        tokenizing.write_runs(writer, runs)

    def tokenize(writer: store.StoreWriter, files: slice, share: float) -> None:
        split = text.split()
        with progress.read_progress("tokenizing", round(split.characters * share)) as advance:
            pieces = tokenizing.read_pieces(source, split, files)
            tokenizing.write_texts(writer, pieces, source, chosen, begin, advance)

    parts = []
    if source.has_tokens:
        parts.append(store.Part("tokens", copy_tokens))
    else:
        for files in source.parts():
            share = sum(size for size, _ in source.stamps[files]) / source.size
            write = functools.partial(tokenize, files=files, share=share)
            parts.append(store.Part(f"{files.start}-{files.stop}", write))
    opened = store.open_store(cfg.cache, name, tokenizing.COLUMNS, parts, chosen.vocab_size)
    tokens = {split: Tokens(opened, split) for split in SPLITS}
    for split, share in (("train", 1 - text.share), ("eval", text.share)):
        if share and not len(tokens[split].ids):
            raise ConfigError(
                f"{source.where}: no text left for the {split} split; give more text."
            )
    return Corpus(source, chosen, tokens, key, content_cache.find_place(cfg.cache, name))


def open_records(
    cfg: DataConfig, corpus: Corpus, objective: Objective, split: str, number: int = 0
) -> Records:
    """Plans the rows of a split for the objective, or reads the plan from the cache.

    Args:
      cfg: the data section of the experiment.
      corpus: the tokenized text.
      objective: plans the rows.
      split: "train" or "eval".
      number: of one of `objective.num_plans`; held-out text has the first.

    Raises:
      ConfigError: the split does not fill one row.
    """
    length, target_length = objective.lengths(cfg.length, cfg.target_length)
    made_by = (
        plugin_name(objective),
        to_config_dict(objective).to_json(),
        *registry.code_of(type(objective)),
    )
    key = digest_of([store.FORMAT, corpus.fingerprint, *made_by, length, target_length])
    tokens = corpus.tokens[split]
    shifted = {}
    # An objective of one plan, such as a plug-in's, need not know of shifts.
    if objective.num_plans > 1:
        shifted["shift"] = shift_of(number)

    def write(writer: store.StoreWriter) -> None:
        for begin, end in _ranges(tokens.offsets, len(corpus.source.fields)):
            offset = tokens.offsets[begin]
            ends = tokens.offsets[begin : end + 1] - offset
            planned = objective.plan_rows(ends, length, target_length, corpus.tokenizer, **shifted)
            pieces = {
                "start": planned.start + offset,
                "length": planned.length,
                "document": planned.document + begin,
            }
            count = np.diff(planned.first)
            writer.append_joined(split, len(count), pieces, dict.fromkeys(pieces, count))

    if split == "train" and len(tokens.ids) < length:
        raise ConfigError(
            f"{corpus.source.where}: {len(tokens.ids)} tokens to train on, less than one row of"
            f" data.length={length}; give more text or lower data.length."
        )
    name = f"rows-{key}-{split}"
    if number:
        name += f"-{number}"
    plan = store.open_store(cfg.cache, name, PLAN, [store.Part("rows", write)])
    if not len(plan):
        where = corpus.source.where
        if split == "eval" and cfg.eval_path:
            where = f"data.eval_path={cfg.eval_path!r}"
        raise ConfigError(
            f"{where}: no document of the {split} split is long enough for"
            f" {plugin_name(objective)}; give more text."
        )
    return Records(
        corpus.tokenizer,
        length,
        target_length,
        tokens.ids,
        start=plan.values("start"),
        length_of=plan.values("length"),
        document=plan.values("document"),
        first=plan.offsets("start"),
        trained_on=corpus.tokens["train"].ids,
    )


def _ranges(offsets: np.ndarray, texts: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of texts of about PLANNED_TOKENS; `texts` of a document stay together."""
    begin = 0
    count = len(offsets) - 1
    while begin < count:
        end = int(np.searchsorted(offsets, offsets[begin] + PLANNED_TOKENS, side="right")) - 1
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
        for piece in tokenizing.read_pieces(text.source, text.split()):
            advance(len(piece.text))
            if piece.split == "train" and next(number) % every == 0:
                yield piece.text


@dataclasses.dataclass(frozen=True, eq=False)
class TextRows:
    """The rows of both splits of a text, and the plans of its epochs."""

    corpus: Corpus
    splits: Mapping[str, Records]  # the training split in its first plan
    open_plan: Callable[[int], Records]  # opens one of `num_plans` of the training split
    num_plans: int
    fingerprint: str  # hash of text, tokenizer, objective and lengths

    def finder(self, seed: int) -> Callable[[int], tuple[Records, int]]:
        """Returns the function that finds row p of the endless stream of training rows.

        The function returns the records and the row in them.
        """
        return endless_finder(self.open_plan, self.num_plans, seed)

    def rows_of(self, epochs: float) -> int:
        """Returns the number of training rows in `epochs` epochs, rounded up."""
        full = int(epochs)
        cycles, rest = divmod(full, self.num_plans)
        count = sum(len(self.open_plan(n)) for n in range(rest))
        if cycles:
            count += cycles * sum(len(self.open_plan(n)) for n in range(self.num_plans))
        if epochs > full:
            last = len(self.open_plan(full % self.num_plans)) * (epochs - full)
            count += math.ceil(last - 1e-6)
        return count

    def prepare(self, epochs: float) -> None:
        """Plans the plans of the first `epochs` epochs now, while the disk has room."""
        for number in range(min(math.ceil(epochs), self.num_plans)):
            self.open_plan(number)


def open_text_rows(
    cfg: ExperimentConfig, data: DataConfig, name: str = "", mixture: CountedRecords | None = None
) -> TextRows:
    """Opens the rows of a text.

    The first call tokenizes the text and plans its rows in `data.cache`.

    Args:
      cfg: the experiment.
      data: its data section, or that of one source of a mixture.
      name: the name of the source.
      mixture: the training records of all of the mixture's sources, once they are open.

    Raises:
      ConfigError: the text, tokenizer, cache or lengths cannot work; the message names the field
        and the way out.
    """
    objective = cfg.objective
    corpus = open_corpus(data, objective.columns, skeleton=cfg.model.skeleton)
    missing = [name for name in objective.needs if getattr(corpus.tokenizer, name) in (None, ())]
    if missing:
        way_out = "leave the path empty to train one"
        if cfg.train.init_from:
            way_out = "choose another objective"
        raise ConfigError(
            f"data.tokenizer.path={data.tokenizer.path!r}: has no {', '.join(missing)}, which"
            f" {plugin_name(objective)} needs; {way_out}."
        )
    check_vocabulary(cfg, corpus.tokenizer)

    @functools.cache
    def opened(split: str, number: int = 0) -> Records:
        records = open_records(data, corpus, objective, split, number)
        return dataclasses.replace(records, source=name, mixture=mixture)

    splits = {split: opened(split) for split in SPLITS}
    shape = splits["train"].length, splits["train"].target_length
    key = hashlib.sha256(f"{corpus.fingerprint} {objective!r} {shape}".encode()).hexdigest()[:16]
    return TextRows(corpus, splits, functools.partial(opened, "train"), objective.num_plans, key)


def check_vocabulary(cfg: ExperimentConfig, known: Tokenizer) -> None:
    """Rejects a model whose vocabulary is smaller than its tokenizer's."""
    used = known.vocab_size
    published = cfg.train.init_from
    if published and "sentinel_ids" not in cfg.objective.needs:
        used = min((used, *known.sentinel_ids))  # published models other than T5 lack sentinels
    if 0 < cfg.model.vocab_size < used:
        way_out = "model.vocab_size=0 to follow it"
        if published:
            way_out = (
                f"data.tokenizer.path to the tokenizer of {published}, or data.tokenizer.add to the"
                " tokens that its table lacks, which get rows"
            )
        raise ConfigError(
            f"model.vocab_size={cfg.model.vocab_size}: the tokenizer has {known.vocab_size}; set"
            f" {way_out}."
        )
