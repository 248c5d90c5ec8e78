"""An example of an experiment's shapes without its text, for those who compile before there is any."""

from typing import Any

import jax
import numpy as np

from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.data import tokenizer
from flaxformer_lite.data.corpus import Records

DOCUMENTS = 4  # enough for objectives that look for another one


def example(cfg: ExperimentConfig) -> dict[str, dict[str, np.ndarray]]:
    """What the objective makes of blank text: every array has the shape and type that it has with the real one.

    Raises:
      ConfigError: lengths that the objective cannot work with.
    """
    length, target_length = cfg.objective.lengths(cfg.data.length, cfg.data.target_length)
    records = _records(cfg, np.full(DOCUMENTS, length + target_length + 1), tokenizer.Bytes().ordinary_ids[:1])
    return cfg.objective.make_example(records, 0, np.random.default_rng(0))


def batch(cfg: ExperimentConfig, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """A batch of random words in documents of random lengths, which share rows: nothing in it is like anything else."""
    rng, size = np.random.default_rng(seed), cfg.train.batch_size
    length, target_length = cfg.objective.lengths(cfg.data.length, cfg.data.target_length)
    longest = min(length, target_length or length)
    lengths = rng.integers(longest // 4 + 2, longest + 2, DOCUMENTS * (size + 1))
    records = _records(cfg, lengths, rng.permutation(tokenizer.Bytes().ordinary_ids))
    rows = [cfg.objective.make_example(records, row % len(records), rng) for row in range(size)]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *rows)


def _records(cfg: ExperimentConfig, lengths: np.ndarray, ids: Any) -> Records:
    """Documents of so many tokens, the end-of-text token among them, of these ids over and over."""
    objective, words = cfg.objective, tokenizer.Bytes()
    length, target_length = objective.lengths(cfg.data.length, cfg.data.target_length)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.resize(np.asarray(ids, np.uint16), offsets[-1])
    tokens[offsets[1:] - 1] = words.eos_id
    plan = objective.pack(offsets, length, target_length, words)
    numbers = {name: np.zeros(len(lengths), np.int64) for name in objective.numbers}
    rows = plan.start, plan.length, plan.document, plan.first
    return Records(words, length, target_length, tokens, *rows, numbers)


def vocab_size(cfg: ExperimentConfig) -> int:
    """The ids of the tokenizer that the config names; of one that is yet to be trained, as many as it may have."""
    named: Any = cfg.data.tokenizer
    if named.path:
        return tokenizer.load(named.path).vocab_size
    return tokenizer.Bytes().vocab_size if named.name == "bytes" else named.vocab_size
