"""An example of an experiment's shapes without its text, for those who compile before there is any."""

from typing import Any

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
    objective, words = cfg.objective, tokenizer.Bytes()
    length, target_length = objective.lengths(cfg.data.length, cfg.data.target_length)
    offsets = np.arange(DOCUMENTS + 1, dtype=np.int64) * (length + target_length + 1)
    plan = objective.pack(offsets, length, target_length, words)
    ids = np.full(offsets[-1], words.ordinary_ids[0], np.uint16)
    records = Records(words, length, target_length, ids, plan.start, plan.length, plan.document, plan.first)
    return objective.make_example(records, 0, np.random.default_rng(0))


def vocab_size(cfg: ExperimentConfig) -> int:
    """The ids of the tokenizer that the config names; of one that is yet to be trained, as many as it may have."""
    named: Any = cfg.data.tokenizer
    if named.path:
        return tokenizer.load(named.path).vocab_size
    return tokenizer.Bytes().vocab_size if named.name == "bytes" else named.vocab_size
