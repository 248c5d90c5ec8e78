"""Mixtures of texts, interleaved by weight.

Each text is tokenized and planned separately, with the same tokenizer.

With a temperature T, the weights are multiplied by size ** (1 / T) (Raffel et al. 2020, T5, section
3.5.2).
"""

import contextlib
import dataclasses
import hashlib
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig, ExperimentConfig
from flaxformer_lite.config.mixture import SourceConfig, read_changes
from flaxformer_lite.data.documents import read_text, shared_tokenizer
from flaxformer_lite.data.examples import open_text_rows
from flaxformer_lite.data.mixing import LEAST_SHARE, Mixing, Stage
from flaxformer_lite.data.records import ConcatRecords, Records, Stream

# The rule of mixing.py: a run begun with another would not go on with the same batches.
RULE = "a tree of two-way choices"
STAIRS = 100  # most steps by which a linear change of a weight is approximated


Described = tuple[tuple[str, str], ...]


class Mixture(NamedTuple):
    """What a Dataset needs of a mixture."""

    splits: Mapping[str, ConcatRecords]
    fingerprint: str
    described: Described  # the sources, for the banner of a run
    sources: Mapping[str, Stream]
    mixing: Mixing


def find_in_mixture(
    sources: Mapping[str, Stream], mixing: Mixing, seed: int
) -> Callable[[int], tuple[Records, int]]:
    """Returns a function that finds row p of the stream.

    It returns the records of the row's source, and the number of the row in them. Each source has
    its own order, which does not change when other sources are added.
    """
    finders = []
    for name, stream in sources.items():
        # By name and not by number, so that other sources may come and go; not by hash(), which
        # differs between processes.
        finders.append(stream.finder((seed + zlib.crc32(name.encode())) % 2**32))

    def find(position: int) -> tuple[Records, int]:
        source, number = mixing.find(position)
        return finders[source](number)

    return find


def interleave(records: ConcatRecords) -> np.ndarray:
    """Returns an order of all rows that takes one from each source in turn.

    Any prefix of it therefore has as many rows of each source, as long as they last.
    """
    stage = Stage(0, (1.0,) * len(records.parts))
    turns = Mixing([stage], list(map(len, records.parts)))
    orders = [np.random.default_rng(0).permutation(len(part)) for part in records.parts]
    rows = []
    for row in range(len(records)):
        part, number = turns.find(row)
        rows.append(orders[part][number] + records.starts[part])
    return np.asarray(rows)


def open_mixture(cfg: ExperimentConfig) -> Mixture:
    """Opens the sources of `data.mixture`.

    The first call tokenizes them and plans their rows in `data.cache`.

    Raises:
      ConfigError: a source, the tokenizer or a weight cannot be used, or the mixture ends before
        the run.
    """
    data = cfg.data
    texts = []
    sections = {name: _section(data, source) for name, source in data.mixture.items()}
    for name, section in sections.items():
        with _naming(name):
            text = read_text(section, cfg.objective.columns)
        # The text is split later, and errors of that should name the source too.
        texts.append(text._replace(split=_naming(name)(text.split)))
    chosen = shared_tokenizer(data, texts)
    sources = dict[str, Stream]()
    parts = list[Records]()
    # It holds the list that the loop below fills, as each source's records refer to those of all.
    all_records = ConcatRecords(parts)
    for name, section in sections.items():
        with _naming(name):
            section = dataclasses.replace(section, tokenizer=chosen)
            sources[name] = open_text_rows(cfg, section, name, all_records)
        parts.append(sources[name].splits["train"])
    limits = []
    for name, source in data.mixture.items():
        limit = None
        if source.epochs:
            limit = sources[name].rows_of(source.epochs)
        limits.append(limit)
    mixing = Mixing(_stages(cfg, sources), limits)
    train = cfg.train
    run_rows = math.ceil(train.epochs * len(all_records)) or train.steps * train.batch_size
    _check_shares(data, mixing)
    _check_length(cfg, mixing, run_rows)
    for stream, count in zip(sources.values(), mixing.counts(run_rows), strict=True):
        stream.prepare(count / len(stream.splits["train"]))
    held = ConcatRecords([stream.splits["eval"] for stream in sources.values()])
    known = [(name, stream.fingerprint) for name, stream in sources.items()]
    known.append(("", RULE))
    fingerprint = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    described = _describe(sources, mixing, run_rows, len(held))
    return Mixture({"train": all_records, "eval": held}, fingerprint, described, sources, mixing)


def _describe(
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


def _section(data: DataConfig, source: SourceConfig) -> DataConfig:
    """Returns the data section for this source alone."""
    text_field = source.text_field or data.text_field
    if source.corpus:
        text_field = "text"
    return dataclasses.replace(
        data,
        mixture={},
        mixture_temperature=0.0,
        mixture_schedule="",
        path=source.path,
        corpus=source.corpus or data.corpus,
        text_field=text_field,
    )


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Makes errors name the field of a source instead of a single text's."""
    try:
        yield
    except ConfigError as error:
        field = r"\bdata\.(path|corpus|text_field)(?=[=:])"
        message = re.sub(field, rf"data.mixture.{name}.\1", str(error))
        raise ConfigError(message) from error


def _stages(cfg: ExperimentConfig, sources: Mapping[str, Stream]) -> list[Stage]:
    """Turns weights, temperature and schedule into stages of constant weights.

    A linear change is approximated by at most STAIRS equal steps.
    """
    data = cfg.data
    size = cfg.train.batch_size
    power = 0.0
    if data.mixture_temperature:
        power = 1 / data.mixture_temperature
    try:
        factors = {name: len(rows.splits["train"]) ** power for name, rows in sources.items()}
    except OverflowError:
        factors = {}
    # Far enough below the largest float, 1.8e308, for products with weights and their sum.
    if max(factors.values(), default=math.inf) > 1e200:
        raise ConfigError(
            f"data.mixture_temperature={data.mixture_temperature:g}: leaves rows to the largest"
            " source only; raise it."
        )
    weights = {name: source.weight for name, source in data.mixture.items()}
    stages = {0: weights}
    for change in read_changes(data.mixture_schedule):
        before = weights
        weights = {**weights, **change.weights}
        stairs = min(STAIRS, change.end - change.begin)
        for stair in range(stairs):
            # The middle of each stair, so that the rows in all are those of the linear change.
            part = (stair + 0.5) / stairs
            step = change.begin + stair * (change.end - change.begin) // stairs
            between = {}
            for name, weight in weights.items():
                between[name] = (1 - part) * before[name] + part * weight
            stages[step] = between
        stages[change.end] = weights
    in_rows = []
    for step, weights in stages.items():
        products = tuple(weights[name] * factors[name] for name in sources)
        in_rows.append(Stage(step * size, products))
    return in_rows


def _check_shares(data: DataConfig, mixing: Mixing) -> None:
    for name, largest in zip(data.mixture, mixing.largest_shares, strict=True):
        if not largest:
            raise ConfigError(
                f"data.mixture.{name}.weight={data.mixture[name].weight:g}: is less than 1 of"
                f" {int(1 / LEAST_SHARE)} rows, so none would be read; raise it, or leave"
                " the source out."
            )


def _check_length(cfg: ExperimentConfig, mixing: Mixing, run_rows: int) -> None:
    """Rejects a run that is longer than the mixture."""
    train = cfg.train
    total = mixing.total
    if total is not None and total < train.batch_size:
        raise ConfigError(
            f"train.batch_size={train.batch_size}: the mixture holds {total:,} rows; lower it, or"
            " raise a source's epochs."
        )
    if total is not None and run_rows > total:
        field = f"steps={train.steps}"
        if train.epochs:
            field = f"epochs={train.epochs:g}"
        raise ConfigError(
            f"train.{field}: needs {run_rows:,} rows, and the mixture holds {total:,} until"
            " its sources reach their epochs; set train.steps to"
            f" {total // train.batch_size} at most,"
            " or raise the epochs of a source (0: without end)."
        )
