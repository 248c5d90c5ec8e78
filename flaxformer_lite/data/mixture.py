"""Reads from a config how the sources of a mixture are interleaved, and checks it.

With a temperature T, the weights are multiplied by size ** (1 / T) (Raffel et al. 2020, T5, section
3.5.2).
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from flaxformer_lite.config import ConfigError, DataConfig, ExperimentConfig
from flaxformer_lite.config.mixture import SourceConfig, read_changes
from flaxformer_lite.data.mixing import LEAST_SHARE, Mixing, Stage

STAIRS = 100  # most steps by which a linear change of a weight is approximated


def interleave(sizes: Sequence[int]) -> np.ndarray:
    """Returns an order of the rows of all sources, one after another, that takes them in turn.

    Any prefix of it therefore has as many rows of each source, as long as they last.

    Args:
      sizes: the number of rows of each source.
    """
    turns = Mixing([Stage(0, (1.0,) * len(sizes))], list(sizes))
    orders = [np.random.default_rng(0).permutation(size) for size in sizes]
    starts = np.cumsum([0, *sizes])
    rows = []
    for row in range(starts[-1]):
        source, number = turns.find(row)
        rows.append(orders[source][number] + starts[source])
    return np.asarray(rows)


def data_of_source(data: DataConfig, source: SourceConfig) -> DataConfig:
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
def naming_source(name: str) -> Iterator[None]:
    """Makes errors name the field of a source instead of a single text's."""
    try:
        yield
    except ConfigError as error:
        field = r"\bdata\.(path|corpus|text_field)(?=[=:])"
        message = re.sub(field, rf"data.mixture.{name}.\1", str(error))
        raise ConfigError(message) from error


def read_stages(cfg: ExperimentConfig, sizes: Mapping[str, int]) -> list[Stage]:
    """Turns weights, temperature and schedule into stages of constant weights.

    A linear change is approximated by at most STAIRS equal steps.
    """
    data = cfg.data
    size = cfg.train.batch_size
    power = 0.0
    if data.mixture_temperature:
        power = 1 / data.mixture_temperature
    try:
        factors = {name: size**power for name, size in sizes.items()}
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
        products = tuple(weights[name] * factors[name] for name in sizes)
        in_rows.append(Stage(step * size, products))
    return in_rows


def check_shares(data: DataConfig, mixing: Mixing) -> None:
    for name, largest in zip(data.mixture, mixing.largest_shares, strict=True):
        if not largest:
            raise ConfigError(
                f"data.mixture.{name}.weight={data.mixture[name].weight:g}: is less than 1 of"
                f" {int(1 / LEAST_SHARE)} rows, so none would be read; raise it, or leave"
                " the source out."
            )


def check_length(cfg: ExperimentConfig, mixing: Mixing, run_rows: int) -> None:
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
