"""Opens the examples of a text or of a mixture of texts: its records, in the rows of plans."""

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.data import store, store_writer
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.data.documents import (
    PAIR,
    STORED,
    open_corpus,
    read_text,
    shared_tokenizer,
)
from flaxformer_lite.data.mixing import (
    Mixing,
    check_length,
    check_shares,
    data_of_source,
    naming_source,
    read_stages,
)
from flaxformer_lite.data.open_tokenizer import check_vocabulary
from flaxformer_lite.data.records import ConcatRecords, Corpus, Records, Stream
from flaxformer_lite.data.split import SPLITS
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.row_plans import WHOLE_DOCUMENTS, RowPlan, shift_of
from flaxformer_lite.objectives.rows import StoredColumn

PLANNED_TOKENS = 1 << 24  # that are planned into rows at a time
# Of each row of a plan, the pieces: the first token of each in the split, its tokens and its text.
PLAN = {
    "document": StoredColumn("int64"),
    "start": StoredColumn("int64", like="document"),
    "length": StoredColumn("int32", like="document"),
}
WHOLE = {"document": StoredColumn("int64")}  # where documents are pairs, which no plan cuts
# The rule of mixing.py: a run begun with another would not go on with the same batches.
MIXING_RULE = "a tree of two-way choices"
Described = tuple[tuple[str, str], ...]


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
    made_from = [store.FORMAT, STORED, corpus.fingerprint, *made_by, length, target_length]
    key = digest_of(made_from)
    tokens = corpus.tokens[split]
    is_whole = tokens.names == PAIR
    shifted = {}
    # An objective of one plan, such as a plug-in's, need not know of shifts.
    if objective.num_plans > 1:
        shifted["shift"] = shift_of(number)

    def write(writer: store_writer.StoreWriter) -> None:
        offsets = {name: tokens.offsets_of(name) for name in tokens.names}
        first = offsets[tokens.names[0]]
        for begin, end in _ranges(first):
            ends = {name: x[begin : end + 1] - x[begin] for name, x in offsets.items()}
            planned = objective.plan_rows(ends, length, target_length, corpus.tokenizer, **shifted)
            pieces = {"document": planned.document + begin}
            if not is_whole:
                pieces |= {"start": planned.start + first[begin], "length": planned.length}
            count = np.diff(planned.first)
            writer.append_joined(split, len(count), pieces, dict.fromkeys(pieces, count))

    if split == "train" and tokens.num_tokens < length:
        raise ConfigError(
            f"{corpus.source.where}: {tokens.num_tokens} tokens to train on, less than one row of"
            f" data.length={length}; give more text or lower data.length."
        )
    name = f"rows-{key}-{split}"
    if number:
        name += f"-{number}"
    columns = WHOLE if is_whole else PLAN
    plan = store_writer.open_store(cfg.cache, name, columns, [store_writer.Part("rows", write)])
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
        tokens.store,
        tokens.names,
        split,
        RowPlan(
            WHOLE_DOCUMENTS if is_whole else plan.values("start"),
            WHOLE_DOCUMENTS if is_whole else plan.values("length"),
            plan.values("document"),
            plan.offsets("document"),
        ),
        trained_on=corpus.tokens["train"] if len(corpus.tokens["train"]) else None,
    )


def _ranges(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields ranges of documents of about PLANNED_TOKENS."""
    begin = 0
    count = len(offsets) - 1
    while begin < count:
        end = int(np.searchsorted(offsets, offsets[begin] + PLANNED_TOKENS, side="right")) - 1
        end = max(end, begin + 1)
        yield begin, end
        begin = end


def open_text_rows(
    cfg: ExperimentConfig, data: DataConfig, name: str = "", mixture: ConcatRecords | None = None
) -> Stream:
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
        return replace(records, source=name, mixture=mixture)

    splits = {split: opened(split) for split in SPLITS}
    shape = splits["train"].length, splits["train"].target_length
    key = hashlib.sha256(f"{corpus.fingerprint} {objective!r} {shape}".encode()).hexdigest()[:16]
    open_plan = functools.partial(opened, "train")
    return Stream(corpus.source, splits, key, open_plan, objective.num_plans, corpus)


class Mixture(NamedTuple):
    """The parts of a mixture that a Dataset is made of."""

    splits: Mapping[str, ConcatRecords]
    fingerprint: str
    described: Described  # the sources, for the banner of a run
    sources: Mapping[str, Stream]
    mixing: Mixing


def open_mixture(cfg: ExperimentConfig) -> Mixture:
    """Opens the sources of `data.mixture`.

    The first call tokenizes them and plans their rows in `data.cache`.

    Raises:
      ConfigError: a source, the tokenizer or a weight cannot be used, or the mixture ends before
        the run.
    """
    data = cfg.data
    texts = []
    sections = {name: data_of_source(data, source) for name, source in data.mixture.items()}
    for name, section in sections.items():
        with naming_source(name):
            text = read_text(section, cfg.objective.columns)
        # The text is split later, and errors of that should name the source too.
        texts.append(text._replace(split=naming_source(name)(text.split)))
    chosen = shared_tokenizer(data, texts)
    sources = dict[str, Stream]()
    parts = list[Records]()
    # It holds the list that the loop below fills, as each source's records refer to those of all.
    all_records = ConcatRecords(parts)
    for name, section in sections.items():
        with naming_source(name):
            section = replace(section, tokenizer=chosen)
            sources[name] = open_text_rows(cfg, section, name, all_records)
        parts.append(sources[name].splits["train"])
    limits = []
    for name, source in data.mixture.items():
        limit = None
        if source.epochs:
            limit = sources[name].rows_of(source.epochs)
        limits.append(limit)
    sizes = {name: len(stream.splits["train"]) for name, stream in sources.items()}
    mixing = Mixing(read_stages(cfg, sizes), limits)
    train = cfg.train
    run_rows = math.ceil(train.epochs * len(all_records)) or train.steps * train.batch_size
    check_shares(data, mixing)
    check_length(cfg, mixing, run_rows)
    for stream, count in zip(sources.values(), mixing.counts(run_rows), strict=True):
        stream.prepare(count / len(stream.splits["train"]))
    held = ConcatRecords([stream.splits["eval"] for stream in sources.values()])
    known = [(name, stream.fingerprint) for name, stream in sources.items()]
    known.append(("", MIXING_RULE))
    fingerprint = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    described = _describe_mixture(sources, mixing, run_rows, len(held))
    return Mixture({"train": all_records, "eval": held}, fingerprint, described, sources, mixing)


def _describe_mixture(
    sources: Mapping[str, Stream], mixing: Mixing, run_rows: int, num_held: int
) -> Described:
    examples = sum(len(stream.splits["train"]) for stream in sources.values())
    rows = [("data", f"a mixture of {len(sources)} sources; {examples:,} examples")]
    counted = zip(sources.items(), mixing.shares(0), mixing.counts(run_rows), strict=True)
    for (name, stream), share, count in counted:
        examples = len(stream.splits["train"])
        read = f"{share:.1%} of the rows at first, {count / examples:.3g} epochs in all"
        rows.append((name, f"{read}; {stream.source.kinds()}; {examples:,} examples"))
        if stream.source.left_out:
            rows.append(("notice", stream.source.unread()))
    return (*rows, ("held out", f"{num_held:,} examples, taken from the sources in turn"))
