"""Records of a small text as objectives see them."""

import functools
import random

import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import DataConfig, TokenizerConfig
from flaxformer_lite.data.documents import open_corpus
from flaxformer_lite.data.text_examples import open_records
from tests.objectives.tables import write_rows


@pytest.fixture(scope="session")
def small_text(tmp_path_factory):
    """A folder with 60 documents of very different lengths, and pairs; every character of a
    document is its own."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(1)
    alphabets = ["abcdefghij", "klmnopqrst", "uvwxyzäöüß", "0123456789", "ABCDEFGHIJ", "KLMNOPQRST"]
    texts = []
    for letters in alphabets * 10:
        count = draw.choice([1, 2, 4, 9, 40])
        words = ("".join(draw.choices(letters, k=draw.randint(1, 7))) for _ in range(count))
        texts.append(" ".join(words))
    rows = []
    for text in texts:
        target = text[::-1][: draw.randint(1, 60)]
        rows.append({"text": text, "source": text, "target": target})
    write_rows(folder / "text.jsonl", rows)
    return folder


@pytest.fixture(scope="session")
def records_of(small_text):
    """records_of(objective, length=.., target_length=.., tokenizer=..) -> Records of the training
    split."""

    @functools.cache
    def make(objective, length=48, target_length=0, tokenizer="bytes"):
        cfg = DataConfig(
            path=str(small_text / "text.jsonl"),
            cache=str(small_text / "cache"),
            length=length,
            target_length=target_length,
            eval_fraction=0.1,
            tokenizer=TokenizerConfig(name=tokenizer, vocab_size=440),
        )
        return open_records(cfg, open_corpus(cfg, objective.columns), objective, "train")

    return make


@pytest.fixture
def generator():
    return lambda *seed: np.random.default_rng(list(seed))


@pytest.fixture(scope="session")
def create():
    """create("masked_lm", rate=0.2) -> the objective."""
    return lambda name, **options: registry.resolve_class("objectives", name)(**options)
