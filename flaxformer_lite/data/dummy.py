"""Dummy examples with the shapes of an experiment, for compiling without data."""

import itertools
from typing import Any

import jax
import numpy as np

from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.data.documents import PAIR, TEXT
from flaxformer_lite.data.encoding import encode_rows
from flaxformer_lite.data.mixing import tag_source
from flaxformer_lite.data.open_tokenizer import open_tokenizer
from flaxformer_lite.data.records import Records
from flaxformer_lite.data.rows import keep_table
from flaxformer_lite.data.store_writer import Part, StoreWriter, build_store
from flaxformer_lite.objectives.row_plans import RowPlan
from flaxformer_lite.objectives.rows import Example, StoredColumn
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.text import tokenizer

DOCUMENTS = 4  # enough for objectives that draw a second document
PRINTABLE = slice(ord(" "), ord("~") + 1)  # bytes


def example(cfg: ExperimentConfig) -> Example:
    """Builds an example from random text; its arrays have the same shapes and dtypes as real ones.

    Raises:
      ConfigError: the objective cannot work with the lengths.
    """
    return _examples(cfg, 1, 0)[0]


def batch(cfg: ExperimentConfig, seed: int = 0) -> Example:
    """Builds a batch of random words in documents of random lengths, packed into rows.

    The batch of a task is made from its sample.
    """
    return jax.tree.map(
        lambda *arrays: np.stack(arrays), *_examples(cfg, cfg.train.batch_size, seed)
    )


def _examples(cfg: ExperimentConfig, count: int, seed: int) -> list[Example]:
    rng = np.random.default_rng(seed)
    if isinstance(cfg.objective, Task):
        objective, sample = _sample(cfg)
        examples = []
        for row in range(count):
            examples.append(objective.make_example(sample, row % len(sample), rng))
        return examples
    length, target_length = cfg.objective.lengths(cfg.data.length, cfg.data.target_length)
    longest = min(length, target_length or length)
    sizes = rng.integers(longest // 4 + 2, longest + 2, DOCUMENTS * (count + 1))
    records = _records(cfg, sizes, rng)
    sources = itertools.cycle(cfg.data.mixture or [""])
    examples = []
    for row, source in zip(range(count), sources, strict=False):
        example = cfg.objective.make_example(records, row % len(records), rng)
        examples.append(tag_source(example, cfg.data.mixture, source))
    return examples


def _sample(cfg: ExperimentConfig) -> tuple[Task, Records]:
    """Returns a task with the labels of its sample, and the sample's examples."""
    task: Any = cfg.objective
    rows = [dict(row) for row in task.sample]
    if task.published_fields().get("labels"):  # which the labels of the sample are not among
        unknown = {column.role: None for column in task.columns if column.predicted}
        rows = [{**row, **unknown} for row in rows]
    else:
        task = task.fit(rows, {})
    table = keep_table(rows, "the sample")
    model = cfg.model.skeleton, cfg.model.type_vocab_size
    return task, encode_rows(task, cfg.data, table, table.rows, tokenizer.Bytes(), *model)


def _records(cfg: ExperimentConfig, lengths: np.ndarray, rng: np.random.Generator) -> Records:
    """Builds documents of these lengths from printable bytes.

    The lengths include the end-of-text token.
    """
    objective = cfg.objective
    words = tokenizer.Bytes()
    length, target_length = objective.lengths(cfg.data.length, cfg.data.target_length)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.resize(
        rng.permutation(words.ordinary_ids[PRINTABLE]).astype(np.uint16), offsets[-1]
    )
    tokens[offsets[1:] - 1] = words.eos_id
    names = PAIR if len(objective.columns) > 1 else TEXT
    texts = np.split(tokens, offsets[1:-1])

    def write(writer: StoreWriter) -> None:
        sides = (texts[number :: len(names)] for number in range(len(names)))
        documents = zip(*sides, strict=True)
        writer.append("train", [dict(zip(names, each, strict=True)) for each in documents])

    columns = dict.fromkeys(names, StoredColumn("token"))
    kept = build_store(columns, [Part("0", write)], words.vocab_size)
    starts = {name: kept.offsets(name) for name in names}
    plan: RowPlan = objective.plan_rows(starts, length, target_length, words)
    return Records(words, length, target_length, kept, names, plan=plan)


def vocab_size(cfg: ExperimentConfig) -> int:
    """Returns the vocabulary size of the config's tokenizer.

    For a tokenizer that is not trained yet, this is the largest size that it may have.
    """
    chosen: Any = cfg.data.tokenizer
    if chosen.path:
        return open_tokenizer(chosen.path, chosen.add).vocab_size
    if chosen.name == "bytes":
        return tokenizer.Bytes().vocab_size
    return chosen.vocab_size + len(chosen.add)
